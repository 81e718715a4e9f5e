"""A bad policy is told apart from a good one, and the telling always comes to an end."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from scheduler_svc import policy_check

POLICIES = """
import itertools, time
from scheduler_svc.core.policies import Fcfs, Policy

class Lifo(Policy):
    name = "lifo"
    displaces = False
    def key(self, request):
        return (-request.arrival, request.arrival)

class Moody(Policy):
    name = "moody"
    calls = 0
    def key(self, request):
        Moody.calls += 1
        return (Moody.calls, request.arrival)

class Broken(Fcfs):
    name = "broken"
    def piece(self, request, wanted, room):
        return 0

class Raises(Fcfs):
    name = "raises"
    def key(self, request):
        raise KeyError(request.tenant)

class LoopsWhenMade(Fcfs):
    def __init__(self, options):
        while True:
            pass

class LoopsWhenMadeAgain(Fcfs):
    made = 0
    def __init__(self, options):
        LoopsWhenMadeAgain.made += 1
        while LoopsWhenMadeAgain.made == 5:
            pass

class MadeOnce(Fcfs):
    made = 0
    def __init__(self, options):
        MadeOnce.made += 1
        assert MadeOnce.made < 5, "no more"

class LoopsAtKeys(Fcfs):
    name = "loops"
    def key(self, request):
        while True:
            pass

class LoopsInWorlds(Fcfs):
    name = "loops"
    def piece(self, request, wanted, room):
        while True:
            time.sleep(1)

class SlowAtKeys(Fcfs):
    name = "slow"
    def key(self, request):
        time.sleep(0.03)
        return (request.arrival,)

class SlowInWorlds(Fcfs):
    name = "slow"
    def piece(self, request, wanted, room):
        time.sleep(0.02)
        return min(wanted, room)

class LoopsInC(Fcfs):
    def key(self, request):
        return sum(itertools.count())

class LoopsWhatever(Fcfs):
    def refuse(self, request, load):
        while True:
            try:
                time.sleep(1)
            except BaseException:
                pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "tried_policies.py").write_text(POLICIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tried_policies", raising=False)
    return "tried_policies"


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("Lifo", 0, "faults"),
        ("Moody", 1, "differently"),
        ("Broken", 1, "piece answered 0"),
        ("Raises", 1, "raises: key raised KeyError"),
        ("Nobody", 2, "cannot be loaded"),
        ("LoopsWhenMade", 2, "LoopsWhenMade' takes too long to load and make"),
        ("LoopsWhenMadeAgain", 1, "MadeAgain' takes too long to load and make"),
        ("MadeOnce", 1, "cannot be made: AssertionError('no more')"),
        ("LoopsAtKeys", 1, "loops: key did not answer in time"),
        ("LoopsInWorlds", 1, "loops: piece did not answer in time"),
        ("SlowAtKeys", 1, "slow: its answers took 2."),
        ("SlowInWorlds", 1, "slow: its answers took 2."),
    ],
)
def test_the_check_tells_good_from_bad(
    module: str, name: str, code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_check, "LOAD_S", 0.25)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]
    app = typer.Typer()
    app.command()(policy_check.main)
    began_s = time.monotonic()
    result = CliRunner().invoke(app, [f"{module}:{name}", "--worlds", "20"])
    assert result.exit_code == code, result.output
    assert says in " ".join(result.output.split())
    assert time.monotonic() - began_s < 60
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)] == handlers


@pytest.mark.parametrize(("name", "where"), [("LoopsInC", "key"), ("LoopsWhatever", "refuse")])
def test_what_cannot_be_interrupted_is_told_by_the_line(
    tmp_path: Path, module: str, name: str, where: str
) -> None:
    script = (
        "import typer; from scheduler_svc import policy_check as check; "
        "check.STUCK_S = 2; typer.run(check.main)"
    )
    command = [sys.executable, "-c", script, f"{module}:{name}"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == policy_check.EXIT_FAULTY, done.stderr
    assert "Timeout (0:00:02)!" in done.stderr
    assert f'tried_policies.py", line {_line(where)} in {where}' in done.stderr


def _line(where: str) -> int:
    """Of the line that hangs in the last policy with that method."""
    marks = {"key": "sum(itertools", "refuse": "time.sleep(1)"}
    lines = POLICIES.splitlines()
    return max(number for number, line in enumerate(lines, 1) if marks[where] in line)
