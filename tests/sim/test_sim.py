"""The simulation as tests; `python -m tests.sim` is the same by hand."""

import subprocess
from pathlib import Path

import pytest

from tests.sim.knobs import Fault
from tests.sim.many import run_many, run_one
from tests.sim.world import World

SEEDS = range(500)


def commit_hash() -> str:
    """Another world with each commit; outside a checkout always the same."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return found.stdout.strip() or "no commit"


@pytest.mark.timeout(600)  # seconds on two idle cores
def test_five_hundred_worlds() -> None:
    failed = [outcome for outcome in run_many(SEEDS) if outcome.failure]
    assert failed == []


@pytest.mark.timeout(600)
def test_storms() -> None:
    """All faults at once; a process is killed about as often as a step ends."""
    outcomes = run_many(range(26), storm=True)
    assert [outcome for outcome in outcomes if outcome.failure] == []
    assert sum(outcome.kills for outcome in outcomes) > 1000


def test_the_world_of_this_commit() -> None:
    for storm in (False, True):
        outcome = run_one(commit_hash(), storm=storm)
        assert not outcome.failure, outcome


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_is_a_world(seed: int) -> None:
    """The same seed gives the same trace, to the letter."""
    traces: list[list[str]] = [[], []]
    for trace in traces:
        World(seed, log=trace.append).run()
    assert traces[0] == traces[1]
    assert traces[0]


def test_every_kind_of_trouble_really_happens() -> None:
    """A fault that never strikes tests nothing."""
    trace: list[str] = []
    for seed in range(200):
        World(seed, log=trace.append).run()
    text = "\n".join(trace)
    for sign in (
        "abort seq",
        "died",
        "ghost of",
        "poisoned",
        "restart of",
        "handover of",
        "stalled",
        "policy crazy",
        "policy fair",
        "TornFrame",
        "torn result",
        "ERROR",
        "STOP_TOKEN",
        "LENGTH",
        "reject TOO_LONG",
        "reject QUEUE_FULL",
        "copied out",
        "copied in",
    ):
        assert sign in text, sign
    assert len(Fault) == 14
