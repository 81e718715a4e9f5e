"""Why a service ended, for whoever started it: the last error that it told its log, or died of.

    supervisor   makes a nameless file in memory and passes it on ──► service
                                               the last error ◄────── writes
    the service has ended: the supervisor reads what is there

An exit status cannot say it, and the log goes elsewhere. A file and not a pipe: nobody has to read
for the service to go on. Nor has anybody to be there: it is a hint, and a service goes on without.
"""

import os
import sys
import time
import traceback
from contextlib import suppress
from types import TracebackType

from structlog.typing import EventDict, WrappedLogger

LAST_WORDS_FD = "TWOSTROKE_LAST_WORDS_FD"
BYTES_MAX = 2000
FRESH_S = 10.0
"""Between its last error and its end, even with a device to close. What was said before is not why
it ended."""


class LastWords:
    """The end of the one who wants to know."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("last-words")
        """To be passed on under its number, which LAST_WORDS_FD tells."""

    def read(self) -> str:
        """One line for a terminal; empty if nothing was said lately."""
        said_s, _, words = os.pread(self.fd, BYTES_MAX, 0).decode(errors="replace").partition(" ")
        if not said_s or time.monotonic() - float(said_s) > FRESH_S:
            return ""
        return "".join(filter(str.isprintable, " ".join(words.split())))

    def close(self) -> None:
        os.close(self.fd)


class Keeper:
    """The service's end: a processor of structlog that keeps the last error."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._excepthook = sys.excepthook

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if method in ("error", "critical"):
            self._keep(_told(event))
        return event

    def excepthook(
        self, kind: type[BaseException], error: BaseException, where: TracebackType | None
    ) -> None:
        """What ends the process is kept, and goes where it would have gone."""
        self._keep(_described(error))
        self._excepthook(kind, error, where)

    def _keep(self, words: str) -> None:
        # All processes of a machine see the same monotonic clock.
        said = f"{time.monotonic()} {words}".encode(errors="replace")
        with suppress(OSError, OverflowError):  # the number may be that of anything, or of nothing
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, said[:BYTES_MAX], 0)


def _told(event: EventDict) -> str:
    """What an event says for a person: its error, if need be the one that is being handled."""
    raised = event.get("exc_info")
    if raised is True:
        raised = sys.exception()
    if isinstance(raised, BaseException):
        return f"{event['event']}: {_described(raised)}"
    return str(event.get("error") or event["event"])


def _described(error: BaseException) -> str:
    """As at the end of a traceback, also where the error cannot say what it is."""
    return "".join(traceback.format_exception_only(error))


def keepers() -> list[Keeper]:
    """One, which also keeps what this process may die of, if somebody wants to know; else none."""
    # Taken out: in a process that is started from here, the number may be that of another file.
    told = os.environ.pop(LAST_WORDS_FD, "")
    try:
        keeper = Keeper(int(told))
    except ValueError:
        return []
    sys.excepthook = keeper.excepthook
    return [keeper]
