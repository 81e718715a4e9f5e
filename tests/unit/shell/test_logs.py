"""What the set-up of logs refuses."""

import pytest
import typer

from svc_shell.logs import setup_logs


def test_an_unknown_level_is_a_wrong_option() -> None:
    with pytest.raises(typer.BadParameter, match="'loud' is none of"):
        setup_logs("test", "loud")
