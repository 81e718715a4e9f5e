"""Options in seconds take numbers within bounds, wherever they come from."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from svc_shell.durations import seconds

app = typer.Typer()


@app.command()
def wait(
    time: Annotated[float | None, seconds("TEST_TIME", "Seconds.", least=0.5)] = None,
) -> None:
    typer.echo(f"waits {time}")


@pytest.mark.parametrize("given", ["nan", "-5", "0.4", "inf", "1e300", "1e9x", ""])
@pytest.mark.parametrize("by_name", [True, False])
def test_what_is_no_time_is_refused(given: str, by_name: bool) -> None:
    if by_name:
        done = CliRunner().invoke(app, ["--time", given])
    elif given:
        done = CliRunner().invoke(app, [], env={"TEST_TIME": given})
    else:
        return  # an empty variable is none
    assert done.exit_code == 2
    assert "--time" in done.output


def test_what_is_one_is_taken() -> None:
    assert CliRunner().invoke(app, ["--time", "1e9"]).output == "waits 1000000000.0\n"
    assert CliRunner().invoke(app, ["--time", "0.5"]).output == "waits 0.5\n"
    assert CliRunner().invoke(app, []).output == "waits None\n"
