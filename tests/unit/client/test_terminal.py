"""An answer on a terminal: rows, the progress line, and text that must not move the cursor."""

import io
import re
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from twostroke_client import Delta, Finish, FinishReason
from twostroke_client.terminal import Progress, Rows, printable, show, summary

WIDTH = 12


def delta(text: str = "", tokens: int = 0, finish: Finish | None = None) -> Delta:
    return Delta(text, tuple(range(tokens)), 0, None, finish)


def finish(**changes: float) -> Finish:
    facts = {"first_token_ms": 100.0, "total_ms": 2100.0, "executor_busy_share": 0.987} | changes
    return Finish(
        reason=FinishReason.LENGTH,
        matched=None,
        prompt_tokens=3,
        cached_tokens=0,
        output_tokens=41,
        preemptions=0,
        queued_ms=0.0,
        **facts,
    )


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(
        file=file, force_terminal=terminal, width=WIDTH, _environ={"TERM": "xterm"}
    ), file


def test_progress_before_and_after_the_first_token() -> None:
    progress = Progress(now_s=10.0)
    assert progress.line(11.25) == "waiting for the first token · 1.2 s"
    progress.add(delta("a", 1), now_s=12.0)
    assert progress.line(12.0) == "first token 2000 ms · 1 token"
    progress.add(delta("b", 10), now_s=14.0)
    assert progress.line(14.0) == "first token 2000 ms · 11 tokens · 5.0 tokens/s"


def test_summary_uses_the_servers_clock() -> None:
    assert summary(finish()) == (
        "first token 100 ms · 41 tokens · 20.0 tokens/s · executor busy 99% · ended by length"
    )
    assert summary(finish(first_token_ms=12_300, total_ms=12_300)).startswith("first token 12.3 s")


@hypothesis.given(st.lists(st.text(alphabet="ab \n漢", max_size=9), max_size=12))
def test_rows_fit_and_lose_nothing(pieces: list[str]) -> None:
    out, _ = console(terminal=True)
    grown = Rows(out)
    rows = [row for piece in pieces for row in grown.add(piece)]
    assert _without_blanks("".join([*rows, grown.last])) == _without_blanks("".join(pieces))
    assert all(cell_len(row.rstrip()) <= WIDTH for row in [*rows, grown.last])
    assert len(rows) >= "".join(pieces).count("\n")


def _without_blanks(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_a_long_line_becomes_rows_and_keeps_its_last_blank() -> None:
    out, _ = console(terminal=True)
    rows = Rows(out)
    assert rows.add("one two three four ") == ["one two "]
    assert rows.last == "three four "
    assert rows.add("five\nsix") == ["three four ", "five"]
    assert rows.last == "six"
    assert rows.add("\n\n") == ["six", ""]


def test_on_a_terminal_every_row_stays_and_the_progress_line_goes() -> None:
    out, file = console(terminal=True)
    err, notes = console(terminal=False)
    show([delta("one two three\n", 3), delta("four", 1, finish())], out, err)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    for row in ("one two", "three", "four"):
        assert row in plain
    assert file.getvalue().rstrip().endswith("four")
    assert notes.getvalue().startswith("first token 100 ms")


def test_elsewhere_the_text_is_left_alone() -> None:
    out, file = console(terminal=False)
    err, _ = console(terminal=False)
    show([delta("a very long line \x1b[31m of text", 3), delta("\n", 1, finish())], out, err)
    assert file.getvalue() == "a very long line \x1b[31m of text\n"


def test_what_came_before_a_failure_is_shown() -> None:
    def broken() -> Iterator[Delta]:
        yield delta("some", 1)
        raise KeyboardInterrupt

    for terminal in (True, False):
        out, file = console(terminal=terminal)
        with pytest.raises(KeyboardInterrupt):
            show(broken(), out, out)
        assert file.getvalue().rstrip().endswith("some")


def test_control_characters_cannot_reach_a_terminal() -> None:
    assert printable("a\x1b[2Jb\x07\r\nc\td\x7f\x9b") == "a\ufffd[2Jb\ufffd\nc   d\ufffd\ufffd"
