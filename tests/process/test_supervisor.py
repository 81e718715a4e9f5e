"""The supervisor's own behaviour, with fake services in the place of the real ones."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor_svc.stack import ChildDied, NotReadyInTime, Stack, StackConfig

pytestmark = pytest.mark.process

FAKE = Path(__file__).parents[1] / "support" / "fake_service.py"
ROLES = ("executor", "scheduler", "frontend")


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    yield path
    assert not _fakes_of(path), "a test left processes behind"


def _fakes_of(run_dir: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(run_dir) in (process.info["cmdline"] or [])
        and process.status() != psutil.STATUS_ZOMBIE
    ]


def config(
    run_dir: Path, *, ready_s: float = 20.0, drain_s: float = 1.0, **behaviour: str
) -> StackConfig:
    commands = {
        role: [sys.executable, str(FAKE), role, str(run_dir), *behaviour.get(role, "").split()]
        for role in ROLES
    }
    return StackConfig(commands, ready_timeout_s=ready_s, drain_timeout_s=drain_s)


def ignore(up: set[str]) -> None:
    pass


def test_ready_then_stopped_front_end_first(run_dir: Path) -> None:
    seen: list[set[str]] = []
    with Stack(run_dir, config(run_dir)) as stack:
        stack.start()
        address = stack.wait_ready(seen.append)
        assert address == (run_dir / "frontend.address").read_text().strip()
        assert stack.pids.keys() == set(ROLES)
        assert stack.stop() == []
    assert (run_dir.parent / "ends").read_text().split() == ["frontend", "scheduler", "executor"]
    assert all(up <= set(ROLES) for up in seen)


def test_a_death_names_the_role_and_its_status(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir, scheduler="dies")) as stack:
        stack.start()
        stack.wait_ready(ignore)
        (run_dir / "die").touch()
        with pytest.raises(ChildDied, match=r"the scheduler \(pid \d+\) exited with status 7"):
            stack.wait()
    assert (run_dir.parent / "ends").read_text().split() == ["frontend", "executor"]


def test_a_killed_service_is_named_with_its_signal(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir)) as stack:
        stack.start()
        stack.wait_ready(ignore)
        os.kill(stack.pids["executor"], signal.SIGKILL)
        with pytest.raises(ChildDied, match=r"the executor .* was killed by SIGKILL"):
            stack.wait()


def test_a_death_before_readiness_is_not_waited_out(run_dir: Path) -> None:
    (run_dir / "die").touch()
    started = time.monotonic()
    with Stack(run_dir, config(run_dir, executor="silent dies", frontend="silent")) as stack:
        stack.start()
        with pytest.raises(ChildDied, match="executor"):
            stack.wait_ready(ignore)
    assert time.monotonic() - started < 15


def test_readiness_has_a_bound_and_says_what_is_missing(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir, ready_s=1.5, frontend="silent")) as stack:
        stack.start()
        with pytest.raises(NotReadyInTime, match=r"not ready after 1.5 s: no sign of the frontend"):
            stack.wait_ready(ignore)


def test_a_service_that_does_not_stop_is_killed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor_svc.stack.STOP_TIMEOUT_S", 2.0)
    with Stack(run_dir, config(run_dir, drain_s=0.1, scheduler="stubborn")) as stack:
        stack.start()
        stack.wait_ready(ignore)
        assert stack.stop() == ["scheduler"]


def test_a_second_interrupt_kills(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir, drain_s=60, frontend="stubborn")) as stack:
        stack.start()
        stack.wait_ready(ignore)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            stack.stop()
    assert not _fakes_of(run_dir)


def test_services_go_when_the_supervisor_is_killed(run_dir: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from supervisor_svc.stack import *\n"
        f"run_dir = Path({str(run_dir)!r})\n"
        f"config = StackConfig({config(run_dir).commands!r})\n"
        "stack = Stack(run_dir, config); stack.start()\n"
        "stack.wait_ready(lambda up: None); print('ready', flush=True); stack.wait()\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    with supervisor.stdout:
        assert supervisor.stdout.readline() == b"ready\n"
        fakes = _fakes_of(run_dir)
        assert len(fakes) == 3
        supervisor.kill()
        supervisor.wait(10)
    gone, alive = psutil.wait_procs(fakes, timeout=5)
    assert (len(gone), alive) == (3, [])
