"""A service's presence as others see it: its lock and its sign."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from svc_shell.presence import is_held, is_up
from svc_wire.errors import RunDirError
from svc_wire.rundir import RunDir


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "r")


def test_up_means_lock_and_sign(run_dir: RunDir) -> None:
    path = run_dir.path
    assert not is_up(path, "executor")
    (path / "ring-1-ab").touch()
    assert not is_up(path, "executor"), "a ring without its owner is left over"
    lock = run_dir.lock("executor")
    assert is_up(path, "executor")
    (path / "ring-1-ab").unlink()
    assert not is_up(path, "executor"), "the model is not loaded yet"
    os.close(lock)


def test_asking_takes_nothing(run_dir: RunDir) -> None:
    os.close(run_dir.lock("scheduler"))
    lock = run_dir.path / "scheduler.lock"
    asker = os.open(lock, os.O_RDWR)
    fcntl.flock(asker, fcntl.LOCK_SH)
    assert not is_held(lock), "another one who asks is not a holder"
    # The service that starts just then waits for the asker instead of giving up.
    threading.Timer(0.03, os.close, (asker,)).start()
    os.close(run_dir.lock("scheduler"))


def test_a_true_holder_is_still_refused(run_dir: RunDir) -> None:
    lock = run_dir.lock("scheduler")
    with pytest.raises(RunDirError, match="another scheduler runs"):
        run_dir.lock("scheduler")
    os.close(lock)


def test_as_a_health_check(run_dir: RunDir) -> None:
    command = [sys.executable, "-m", "svc_shell.presence", "scheduler"]
    env = os.environ | {"TWOSTROKE_RUN_DIR": str(run_dir.path)}
    down = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (down.returncode, down.stdout) == (1, "")
    assert down.stderr.startswith("the scheduler is not up in ")
    (run_dir.path / "scheduler.sock").touch()
    lock = run_dir.lock("scheduler")
    assert subprocess.run(command, env=env, check=False).returncode == 0
    os.close(lock)
