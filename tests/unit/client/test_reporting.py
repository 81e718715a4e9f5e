"""Errors as sentences and exit codes."""

import pytest
import typer

from twostroke_client.errors import DeadlineExceeded, TwostrokeError, Unreachable
from twostroke_client.reporting import reported


@pytest.mark.parametrize(
    ("error", "timeout_s", "code", "sentence"),
    [
        (DeadlineExceeded("late"), 2.0, 4, "the time given with --timeout is up"),
        (DeadlineExceeded("late"), None, 3, "the server at a:1 did not answer in time"),
        (
            Unreachable("resolving a: lookup failed [errors: Domain name not found]"),
            None,
            3,
            "the connection to a:1 failed: Domain name not found",
        ),
    ],
)
def test_what_is_said(
    error: TwostrokeError,
    timeout_s: float | None,
    code: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as left, reported("a:1", timeout_s):
        raise error
    assert left.value.exit_code == code
    assert capsys.readouterr().err.splitlines()[0] == f"error: {sentence}"
