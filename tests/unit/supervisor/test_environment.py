"""What `serve` makes of the environment beside its command line."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from supervisor_svc import cli
from supervisor_svc.stack import StackConfig, StackError

FAIR = {"TWOSTROKE_POLICY": "fair", "TWOSTROKE_POLICY_OPT": "weight.a=3"}
OPTIONS_ALONE = {"TWOSTROKE_POLICY_OPT": "weight.a=3"}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[StackConfig]:
    """The configurations with which an instance would have been started."""
    configs: list[StackConfig] = []

    def refuse(_run_dir: Path, config: StackConfig) -> None:
        configs.append(config)
        raise StackError("no more is needed")

    monkeypatch.setattr(cli, "Stack", refuse)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(cli, "instance_dir", lambda *_: nullcontext(Path("/run")))
    return configs


@pytest.mark.parametrize(
    ("env", "given", "policy"),
    [
        (FAIR, [], ["--policy", "fair", "--policy-opt", "weight.a=3"]),
        (FAIR, ["--policy", "fair"], ["--policy", "fair", "--policy-opt", "weight.a=3"]),
        (FAIR, ["--policy", "fcfs"], ["--policy", "fcfs"]),
        (
            FAIR,
            ["--policy", "sjf", "--policy-opt", "x=1"],
            ["--policy", "sjf", "--policy-opt", "x=1"],
        ),
        (
            OPTIONS_ALONE,
            ["--policy", "fair"],
            ["--policy", "fair", "--policy-opt", "weight.a=3"],
        ),
        (OPTIONS_ALONE, [], ["--policy-opt", "weight.a=3"]),
    ],
)
def test_options_of_another_policy_do_not_come_along(
    env: Mapping[str, str], given: list[str], policy: list[str], seen: list[StackConfig]
) -> None:
    done = CliRunner().invoke(cli.app, ["--port", "0", *given], env=env)
    assert done.exit_code == 1
    [config] = seen
    words = list(config.commands["scheduler"])
    assert words[words.index("--run-dir") + 2 : words.index("--drain-timeout")] == policy


@pytest.mark.parametrize("name", ["READY", "DRAIN", "OUTAGE", "STALL", "HANG"])
@pytest.mark.parametrize("value", ["nan", "-5", "inf"])
def test_a_time_that_is_none_starts_nothing(name: str, value: str, seen: list[StackConfig]) -> None:
    variable = f"TWOSTROKE_{name}_TIMEOUT"
    done = CliRunner().invoke(cli.app, ["--port", "0"], env={variable: value})
    assert done.exit_code == 2
    assert f"--{name.lower()}-timeout" in done.output
    assert seen == []
