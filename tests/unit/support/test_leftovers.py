"""What tests leave behind is found, blamed on who left it, and cleared."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support import leftovers
from tests.support.tmpfs import SHM, private_dir, private_prefix

ORPHAN = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3).pid)"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "ENDING_S", 0.1)


def test_an_orphan_is_found_and_ended() -> None:
    parent = subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, check=True)
    orphan = psutil.Process(int(parent.stdout))
    assert leftovers.clear() == [f"process {orphan.pid}: sleep 60"]
    psutil.wait_procs([orphan], timeout=5)
    assert leftovers.clear() == []


def test_a_process_of_others_is_left_alone() -> None:
    environment = os.environ | {leftovers.STARTED_BY: "1"}
    with subprocess.Popen(["sleep", "60"], env=environment) as other:
        assert leftovers.clear() == []
        assert other.poll() is None
        other.kill()


def test_a_directory_is_found_and_removed() -> None:
    with tempfile.TemporaryDirectory(prefix=f"not-{private_prefix()}", dir=SHM):
        left = Path(tempfile.mkdtemp(prefix=private_prefix(), dir=SHM))
        assert leftovers.clear() == [str(left)]
        assert not left.exists()
        assert leftovers.clear() == []


def test_what_is_cleared_in_time_is_no_leftover() -> None:
    with private_dir() as path:
        assert path.name.startswith(private_prefix())
    assert leftovers.clear() == []
