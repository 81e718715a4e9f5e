"""A conversation at the terminal: Ctrl-C stops the answer, Ctrl-D leaves."""

import sys
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console

from twostroke_client.client import Client
from twostroke_client.errors import TwostrokeError
from twostroke_client.terminal import show
from twostroke_client.values import Delta, GenerateOptions, Message

PROMPT = "> "
HINT = "Ctrl-C stops an answer, Ctrl-D leaves."


def read_line() -> str:
    """One line of the user, with editing and recall at a terminal. Raises EOFError at the end."""
    if not sys.stdin.isatty():
        return input()
    import readline  # noqa: F401 (importing it is what gives input() its editing)

    return input(PROMPT)


def converse(
    client: Client,
    options: GenerateOptions,
    *,
    system: str,
    timeout_s: float | None,
    out: Console,
    err: Console,
    read: Callable[[], str] = read_line,
) -> None:
    """Asks and answers until the input ends. An answer that was stopped stays as far as it came."""
    turns = [Message("system", system)] if system else []
    while (said := _next_turn(read, err)) is not None:
        heard: list[str] = []
        asked = [*turns, Message("user", said)]
        try:
            with client.generate(asked, timeout_s=timeout_s, **options) as stream:
                show(_overheard(stream, heard), out, err)
        except KeyboardInterrupt:
            err.print("stopped", style="dim")
        except TwostrokeError as error:
            err.print(f"error: {error}", style="red")
            continue  # the turn did not happen: it may be said again
        turns = [*asked, Message("assistant", "".join(heard))]


def _next_turn(read: Callable[[], str], err: Console) -> str | None:
    while True:
        try:
            said = read()
        except EOFError:
            err.print()  # the shell's prompt comes on a line of its own
            return None
        except KeyboardInterrupt:
            err.print(f"\n{HINT}", style="dim")
            continue
        if said.strip():
            return said


def _overheard(stream: Iterable[Delta], heard: list[str]) -> Iterator[Delta]:
    for delta in stream:
        heard.append(delta.text)
        yield delta
