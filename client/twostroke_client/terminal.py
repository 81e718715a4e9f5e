"""An answer on the terminal: the text as it comes, and one line that says how it fares.

    stdout is a terminal    finished rows are printed for good; the row that still grows and the
                            progress line below it are redrawn in place
    stdout is anything else the text as it is, byte for byte, without the progress line

The summary goes to stderr, so that stdout holds the text and nothing else.
"""

import time
import unicodedata
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol, Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from twostroke_client.values import Delta, Finish

REDRAWS_PER_S = 8


class Progress:
    """What a reader can know of an answer while it runs. Times are seconds on one clock."""

    def __init__(self, now_s: float) -> None:
        self._started_s = now_s
        self._first_s: float | None = None
        self._tokens = 0

    def add(self, delta: Delta, now_s: float) -> None:
        self._tokens += len(delta.token_ids)
        if self._tokens and self._first_s is None:
            self._first_s = now_s

    def line(self, now_s: float) -> str:
        if self._first_s is None:
            return f"waiting for the first token · {now_s - self._started_s:.1f} s"
        parts = [_first_token(self._first_s - self._started_s), _count(self._tokens)]
        running_s = now_s - self._first_s
        if self._tokens > 1 and running_s > 0:
            parts.append(f"{(self._tokens - 1) / running_s:.1f} tokens/s")
        return " · ".join(parts)


def summary(finish: Finish) -> str:
    """The progress line of an answer that has ended, by the server's own clock."""
    parts = [_first_token(finish.first_token_ms / 1e3), _count(finish.output_tokens)]
    if finish.tokens_per_s is not None:
        parts.append(f"{finish.tokens_per_s:.1f} tokens/s")
    parts.append(f"executor busy {finish.executor_busy_share:.0%}")
    parts.append(f"ended by {finish.reason.value}")
    return " · ".join(parts)


def _first_token(seconds: float) -> str:
    return f"first token {seconds * 1e3:.0f} ms" if seconds < 10 else f"first token {seconds:.1f} s"


def _count(tokens: int) -> str:
    return f"{tokens} token{'' if tokens == 1 else 's'}"


class View(AbstractContextManager["View"], Protocol):
    """Where an answer appears."""

    def add(self, delta: Delta) -> None: ...


def view_for(out: Console) -> View:
    """The view that suits what `out` is connected to."""
    return _LiveView(out) if out.is_terminal and not out.is_dumb_terminal else _PlainView(out)


def show(pieces: Iterable[Delta], out: Console, err: Console) -> None:
    """Shows an answer to its end, then its summary."""
    finish = None
    with view_for(out) as view:
        for delta in pieces:
            view.add(delta)
            finish = delta.finish
    if finish is not None:
        err.print(summary(finish), style="dim", soft_wrap=True)


class _PlainView(View):
    def __init__(self, out: Console) -> None:
        self._file = out.file
        self._at_line_start = True

    def add(self, delta: Delta) -> None:
        if delta.text:
            self._file.write(delta.text)
            self._file.flush()
            self._at_line_start = delta.text.endswith("\n")

    def __exit__(self, *_: object) -> None:
        if not self._at_line_start:
            self._file.write("\n")
            self._file.flush()


class Rows:
    """Cuts a text that grows into rows of a terminal; what may still grow stays in `last`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.last = ""

    def add(self, text: str) -> list[str]:
        """The rows that are complete now."""
        *lines, growing = (self.last + text).split("\n")
        *rows, last = self._wrapped(growing)
        # Wrapping may strip blanks at the end of a row; those of the last one still count.
        self.last = growing[growing.rindex(last) :]
        return [row for line in lines for row in self._wrapped(line)] + rows

    def _wrapped(self, line: str) -> list[str]:
        wrapped = Text(line).wrap(self._console, self._console.width)
        return [row.plain for row in wrapped] or [""]


class _LiveView(View):
    """Keeps the redrawn region two rows high, so that a text of any length scrolls as usual."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._rows = Rows(out)
        self._progress = Progress(time.monotonic())
        self._live = Live(self, console=out, transient=True, refresh_per_second=REDRAWS_PER_S)

    def add(self, delta: Delta) -> None:
        self._progress.add(delta, time.monotonic())
        for row in self._rows.add(printable(delta.text)):
            self._print(row)

    def _print(self, row: str) -> None:
        self._out.print(Text(row), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(self._progress.line(time.monotonic()), style="dim", no_wrap=True)
        yield Group(Text(self._rows.last), line) if self._rows.last else line

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._rows.last:
            self._print(self._rows.last)


def printable(text: str) -> str:
    """Text that cannot move the cursor or change the terminal, whatever a model wrote."""
    text = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" and c != "\n" else c
        for c in text
    )
