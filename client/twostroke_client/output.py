"""Standard output whose failures end the command: what cannot be written is no traceback.

A reader who has left (`| head -1`) wanted no more, so nothing is said; a full disk is one sentence.
Either way the exit status tells, and `with` blocks are left as usual: a request is cancelled, an
instance is stopped.
"""

import errno
import io
import os
import sys
from typing import NoReturn

from twostroke_client.reporting import EXIT_FAILED, EXIT_NO_READER, complain


class Output(io.TextIOWrapper):
    """Ends the command where others raise OSError."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> NoReturn:
        # What is still buffered must not fail once more when Python ends.
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, self.fileno())
        os.close(sink)
        if error.errno == errno.EPIPE:
            raise SystemExit(EXIT_NO_READER) from None
        complain(f"cannot write the output: {error.strerror}")
        raise SystemExit(EXIT_FAILED) from None


def guard_stdout() -> None:
    """Puts an Output in the place of sys.stdout, for the rest of the process."""
    # It is None if whoever started this has closed it. What takes its number must fail, too.
    plain = sys.stdout or os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    assert isinstance(plain, io.TextIOWrapper)
    encoding, errors, line_buffering = plain.encoding, plain.errors, plain.line_buffering
    write_through = plain.write_through  # PYTHONUNBUFFERED asks for it
    sys.stdout = Output(
        plain.detach(),
        encoding,
        errors,
        line_buffering=line_buffering,
        write_through=write_through,
    )
