"""The command lines that the supervisor builds."""

import sys
from pathlib import Path

from supervisor_svc.arguments import with_options
from supervisor_svc.cli import commands


def test_options_go_to_their_owner_and_absent_ones_to_nobody() -> None:
    built = commands(Path("/run"), {"model": "hash", "port": 0, "policy": None, "depth": 2})
    start = [sys.executable, "-P", "-m"]
    assert built == {
        "executor": [*start, "executor_svc", "--run-dir", "/run", "--model", "hash"],
        "scheduler": [*start, "scheduler_svc", "--run-dir", "/run", "--depth", "2"],
        "frontend": [*start, "frontend_svc", "--run-dir", "/run", "--port", "0"],
    }


def test_a_new_policy_comes_without_the_options_of_the_old_one() -> None:
    before = ["scheduler", "--policy", "fair", "--policy-opt", "weight.gold=3", "--depth", "1"]
    more = ["--policy-opt", "weight.free=1", "--policy-opt=x=2"]
    fair = with_options(before, more)
    assert fair == [*before, *more], "the same policy keeps them"
    bare = ["scheduler", "--policy", "fair", "--depth", "1"]
    for order in (["--policy", "fcfs"], ["--policy=sjf", "--policy-opt", "x=1"]):
        assert with_options(fair, order) == [*bare, *order]
