"""Every planted bug is found."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mutants.bugs import BUGS
from tests.mutants.planting import ROOT, Bug, plant

pytestmark = pytest.mark.timeout(600)  # half a minute on two idle cores; the first test hunts all

SEEDS_MAX = 300


def hunt(bug: Bug, place: Path) -> str:
    """What finds the bug in a copy of the core at `place`; empty if nothing does."""
    plant(place, f"scheduler_svc/core/{bug.file}", bug.right, bug.wrong)
    hunted = subprocess.run(
        [sys.executable, "-m", "tests.mutants.hunt", place, bug.story or str(SEEDS_MAX)],
        cwd=place,  # so that its scheduler_svc goes before ours
        env=os.environ | {"PYTHONPATH": f"{place}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert hunted.stderr == "", hunted.stderr
    return hunted.stdout.strip()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What found each bug. They are hunted side by side, a process each."""
    places = [tmp_path_factory.mktemp("core") for _ in BUGS]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip([bug.name for bug in BUGS], pool.map(hunt, BUGS, places), strict=True))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug, found: dict[str, str]) -> None:
    assert found[bug.name]


def test_an_undamaged_core_is_left_in_peace(tmp_path: Path) -> None:
    assert hunt(Bug("none", "scheduler.py", "class Scheduler:", "class Scheduler:"), tmp_path) == ""
