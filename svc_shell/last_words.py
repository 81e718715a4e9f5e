"""Why a service ended, for whoever started it: the last error that it told its log, or died of.

    supervisor   makes a nameless file in memory and passes it on ──► service
                                               the last error ◄────── writes
    the service has ended: the supervisor reads what is there

An exit status cannot say it, and the log goes elsewhere. A file and not a pipe: nobody has to read
for the service to go on.
"""

import os
import sys
from types import TracebackType

from structlog.typing import EventDict, WrappedLogger

LAST_WORDS_FD = "TWOSTROKE_LAST_WORDS_FD"
BYTES_MAX = 2000


class LastWords:
    """The end of the one who wants to know."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("last-words")
        """To be passed on under its number, which LAST_WORDS_FD tells."""

    def read(self) -> str:
        """One line; empty if nothing was said."""
        return " ".join(os.pread(self.fd, BYTES_MAX, 0).decode(errors="replace").split())

    def close(self) -> None:
        os.close(self.fd)


class Keeper:
    """The service's end: a processor of structlog that keeps the last error."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._excepthook = sys.excepthook

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if method in ("error", "critical"):
            self._keep(str(event.get("error") or event["event"]))
        return event

    def excepthook(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        """What ends the process is kept, and goes where it would have gone."""
        self._keep(f"{kind.__name__}: {error}")
        self._excepthook(kind, error, traceback)

    def _keep(self, words: str) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, words.encode(errors="replace")[:BYTES_MAX], 0)


def keepers() -> list[Keeper]:
    """One, which also keeps what this process may die of, if somebody wants to know; else none."""
    # Taken out: in a process that is started from here, the number may be that of another file.
    fd = os.environ.pop(LAST_WORDS_FD, None)
    if fd is None:
        return []
    keeper = Keeper(int(fd))
    sys.excepthook = keeper.excepthook
    return [keeper]
