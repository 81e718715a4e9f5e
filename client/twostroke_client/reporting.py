"""How the command line says what went wrong: one sentence on stderr and an exit code.

The codes tell the truth about what happened:

    0    done: the answer is whole, the server was stopped as asked
    1    it failed: a process died, an answer was cut off or could not be computed or written
    2    the call is wrong: option, value or address, or a prompt that can never fit
    3    the server cannot be reached, is not ready, is draining or full; later may be better
    4    the time given with --timeout is up
    130  stopped by Ctrl-C
    141  whoever read the output has left
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from twostroke_client.errors import (
    DeadlineExceeded,
    InvalidAddress,
    InvalidRequest,
    Lost,
    RequestError,
    TwostrokeError,
    Unavailable,
    Unreachable,
)

EXIT_FAILED, EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_DEADLINE, EXIT_INTERRUPTED = 1, 2, 3, 4, 130
EXIT_NO_READER = 141
"""That of a process which SIGPIPE has ended, for a shell."""


@contextmanager
def reported(address: str, timeout_s: float | None = None) -> Iterator[None]:
    """Turns what goes wrong inside into a sentence and an exit code.

    `timeout_s`: what the user allowed, if the command asks for it.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except Unreachable as error:
        # What is before it is how gRPC came to know, some of it in brackets.
        cause = str(error).rpartition(": ")[2].removesuffix("]")
        complain(f"the connection to {address} failed: {cause}")
        stderr().print("Is a server running there? `twostroke serve` starts one.", style="dim")
        raise typer.Exit(EXIT_UNAVAILABLE) from error
    except DeadlineExceeded as error:
        if timeout_s is None:
            complain(f"the server at {address} did not answer in time")
            raise typer.Exit(EXIT_UNAVAILABLE) from error
        complain("the time given with --timeout is up")
        raise typer.Exit(EXIT_DEADLINE) from error
    except TwostrokeError as error:
        complain(str(error))
        if isinstance(error, InvalidRequest) and error.field.startswith("chat"):
            stderr().print("With --raw, a text is continued as it is.", style="dim")
        raise typer.Exit(exit_code(error)) from error


def exit_code(error: TwostrokeError) -> int:
    match error:
        case RequestError() | InvalidAddress():
            return EXIT_USAGE
        case Unavailable() if not isinstance(error, Lost):
            return EXIT_UNAVAILABLE
        case _:
            return EXIT_FAILED


def complain(message: str) -> None:
    stderr().print(f"error: {message}", style="red", soft_wrap=True)


def write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def stdout() -> Console:
    return Console(highlight=False, markup=False)


def stderr() -> Console:
    return Console(stderr=True, highlight=False, markup=False)
