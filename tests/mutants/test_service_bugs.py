"""Every bug that is planted in a service fails the test that is there for it, and nothing else
does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.planting import ROOT, plant
from tests.mutants.service_bugs import SERVICE_BUGS, ServiceBug

PATHS = ("protos", "client")
_PASSED, _FAILED = 0, 1


def run(place: Path, *tests: str) -> "subprocess.CompletedProcess[str]":
    """Runs tests on the packages at `place`, and on ours as for those that are not there."""
    search = " ".join(map(str, [place, ROOT, *(ROOT / path for path in PATHS)]))
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, "-o", f"pythonpath={search}"]
        + [str(ROOT / test) for test in tests],
        cwd=place,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("bug", SERVICE_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: ServiceBug, tmp_path: Path) -> None:
    plant(tmp_path, bug.file, bug.right, bug.wrong)
    found = run(tmp_path, bug.test)
    assert found.returncode == _FAILED, found.stdout + found.stderr


def test_undamaged_services_are_left_in_peace(tmp_path: Path) -> None:
    for bug in {bug.file.split("/")[0]: bug for bug in SERVICE_BUGS}.values():
        plant(tmp_path, bug.file, bug.right, bug.right)
    found = run(tmp_path, *(bug.test for bug in SERVICE_BUGS))
    assert found.returncode == _PASSED, found.stdout + found.stderr
