"""Policies are found by name, entry point and module; what cannot be made ends nobody."""

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from scheduler_svc import policy_finder
from scheduler_svc.core import PolicyStalled, Question
from scheduler_svc.core.policies import BY_NAME, Fair, Fcfs, OptionError, Options
from scheduler_svc.policy_finder import (
    PolicyNotFound,
    make_in_time,
    make_policy,
    names,
    parse_options,
)

GOOD = """
from scheduler_svc.core.policies import Policy

class Lifo(Policy):
    name = "lifo"
    displaces = False
    def key(self, request):
        return (-request.arrival, request.arrival)

thing = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_policies.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    return "my_policies"


def test_those_that_ship_are_found_by_name() -> None:
    assert isinstance(make_policy("fcfs", {}), Fcfs)
    assert isinstance(make_policy("fair", {"weight.a": "2"}), Fair)
    with pytest.raises(OptionError):
        make_policy("fcfs", {"weight.a": "2"})


def test_a_module_is_found_where_that_is_allowed(module: str) -> None:
    assert make_policy(f"{module}:Lifo", {}).name == "lifo"
    with pytest.raises(PolicyNotFound):
        make_policy(f"{module}:Lifo", {}, allow_module=False)
    for name in (f"{module}:Nobody", f"{module}:thing", "no_such_module:Lifo", "nonsense", ""):
        with pytest.raises(PolicyNotFound):
            make_policy(name, {})


def test_entry_points_are_found_and_hide_nothing(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = EntryPoints(
        EntryPoint(name, f"{module}:Lifo", policy_finder.GROUP) for name in ("lifo", "fcfs")
    )
    monkeypatch.setattr(policy_finder, "entry_points", lambda group: points)
    assert names()[-1] == "lifo"
    assert names().count("fcfs") == 1
    assert make_policy("lifo", {}, allow_module=False).name == "lifo"
    assert isinstance(make_policy("fcfs", {}), Fcfs)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise ValueError('oh')", r"cannot be loaded: ValueError\('oh'\)"),
        ("class Lifo(:", "cannot be loaded: SyntaxError"),
        ("raise SystemExit(3)", r"cannot be loaded: SystemExit\(3\)"),
        (
            GOOD + "class Lifo(Lifo):\n    def __init__(self, options): raise KeyError('oh')",
            r"cannot be made: KeyError\('oh'\)",
        ),
        ("raise KeyboardInterrupt", r"cannot be loaded: KeyboardInterrupt\(\)"),
        (
            "raise ImportError('\udc80')".encode("unicode_escape").decode(),
            r"cannot be loaded: \\udc80",
        ),
        (
            "class Oh(Exception):\n    def __repr__(self): return 5\nraise Oh",
            "cannot be loaded: what cannot be shown",
        ),
        (GOOD + "class Lifo(Lifo):\n    name = 5", "calls itself 5"),
        (GOOD + "class Lifo(Lifo):\n    name = '\\udc80'", r"calls itself '\\udc80'"),
    ],
)
def test_whatever_a_module_does_it_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    (tmp_path / "wild_policies.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wild_policies", raising=False)
    with pytest.raises(PolicyNotFound, match=says) as caught:
        make_policy("wild_policies:Lifo", {})
    str(caught.value).encode()


def test_what_a_policy_says_of_its_options_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky(Fcfs):
        def configure(self, options: Options) -> None:
            raise OptionError("\udc80")

    monkeypatch.setitem(BY_NAME, "picky", Picky)
    with pytest.raises(OptionError, match=r"\\udc80") as caught:
        make_policy("picky", {})
    str(caught.value).encode()


LOOPS = """
from scheduler_svc.core.policies import Fcfs
class Loops(Fcfs):
    def __init__(self, options):
        while True:
            pass
"""


def test_a_policy_that_cannot_be_made_in_time_is_none() -> None:
    class Stalls(Fcfs):
        def __init__(self, options: object) -> None:
            raise PolicyStalled

    question = Question()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BY_NAME, "stalls", Stalls)
        with pytest.raises(PolicyNotFound, match="'stalls' takes too long"):
            make_in_time(question, "stalls", {})
    assert not question.is_open
    assert isinstance(make_in_time(question, "fcfs", {}), Fcfs)


@pytest.mark.parametrize(
    ("package", "options"),
    [("scheduler_svc", ["--check"]), ("scheduler_svc.simulate", ["--poisson", "5"])],
)
def test_nobody_waits_for_ever_for_a_policy(
    tmp_path: Path, package: str, options: list[str]
) -> None:
    (tmp_path / "endless_policies.py").write_text(LOOPS)
    script = (
        f"import typer; from {package} import __main__ as start; "
        "start.LOAD_S = 0.25; typer.run(start.main)"
    )
    command = [sys.executable, "-c", script, *options, "--policy", "endless_policies:Loops"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "takes too long" in done.stderr


def test_options_are_texts() -> None:
    assert parse_options(["weight.a=3", "x=a=b"]) == {"weight.a": "3", "x": "a=b"}
    for text in ("weight", "=3", ""):
        with pytest.raises(OptionError):
            parse_options([text])
