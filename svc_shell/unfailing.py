"""Standard error that never fails: what cannot be written is dropped, and its lines are counted.

    disk full, reader gone, terminal gone ─► dropped: 1, 2, 3 lines ...
    it can be written again               ─► "3 lines were lost", and the line that is due

A log tells of the service and is no part of it: it must not end what it tells of. In the place of
sys.stderr, this holds for all that writes there: the log, Python's warnings and tracebacks, usage
errors, libraries.
"""

import io
import os
import sys
import threading
from collections.abc import Callable


class Unfailing(io.TextIOBase):
    """A text stream that writes whole lines to a descriptor, unbuffered, and never raises OSError.

    Whatever is buffered below would come back with each further write, and at Python's end.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, fd: int, notice: Callable[[int], str]) -> None:
        """`notice` words how many lines were lost, in a line."""
        super().__init__()
        self._fd = fd
        self._notice = notice
        self._begun = ""
        self._lost = 0
        self._is_torn = False
        self._lock = threading.RLock()  # a signal handler may write amid a write

    def write(self, text: str) -> int:
        with self._lock:
            self._begun += text
            if "\n" in text:
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            begun, self._begun = self._begun, ""  # no call in it, so no signal handler either
            for line in begun.splitlines(keepends=True):
                self._put(line)

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def _put(self, line: str) -> None:
        if self._lost and self._is_written(self._notice(self._lost) + "\n"):
            self._lost = 0
        if self._lost or not self._is_written(line):
            self._lost += 1

    def _is_written(self, line: str) -> bool:
        left = ("\n" * self._is_torn + line).encode(self.encoding, self.errors)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
                self._is_torn = bool(left)
        except OSError:
            return False
        return True


def guard_stderr(notice: Callable[[int], str]) -> None:
    """Puts an Unfailing in the place of sys.stderr, for the rest of the process."""
    if sys.stderr is None:  # whoever started this has closed it
        sys.stderr = Unfailing(os.open(os.devnull, os.O_WRONLY), notice)
        return
    try:
        fd = sys.stderr.fileno()
    except OSError:
        return  # it is in memory
    sys.stderr = Unfailing(fd, notice)
