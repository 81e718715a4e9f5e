"""The supervisor's own behaviour, with fake services in the place of the real ones."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from supervisor_svc import control
from supervisor_svc.stack import ChildDied, NotReadyInTime, Stack, StackConfig
from supervisor_svc.upkeep import Upkeep
from svc_shell.presence import is_up

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


def begin(stack: Stack) -> None:
    """The fake front end is ready on its own; here all are."""
    stack.start()
    stack.wait_ready(ignore)
    until(lambda: all(is_up(stack.run_dir, role) for role in ROLES))


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_ready_then_stopped_front_end_first(run_dir: Path) -> None:
    seen: list[set[str]] = []
    with Stack(run_dir, config(run_dir)) as stack:
        stack.start()
        address = stack.wait_ready(seen.append)
        until(lambda: all(is_up(run_dir, role) for role in ROLES))
        assert address == (run_dir / "frontend.address").read_text().strip()
        assert stack.pids.keys() == set(ROLES)
        assert stack.stop() == []
    assert (run_dir.parent / "ends").read_text().split() == ["frontend", "scheduler", "executor"]
    assert all(up <= set(ROLES) for up in seen)


def upkeep(stack: Stack, said: list[str], restarts_max: int = 0, hang_s: float = 60.0) -> Upkeep:
    return Upkeep(stack, restarts_max=restarts_max, hang_timeout_s=hang_s, tell=said.append)


@contextmanager
def kept(
    run_dir: Path, *, restarts_max: int = 3, hang_s: float = 60.0, **behaviour: str
) -> Iterator[tuple[Stack, list[str]]]:
    """A stack that is kept running in another thread until the block ends, and what it said."""
    said: list[str] = []
    asked = config(run_dir, ready_s=20.0, drain_s=1.0, **behaviour)
    with Stack(run_dir, asked) as stack, ThreadPoolExecutor(1) as pool:
        begin(stack)
        keeper = upkeep(stack, said, restarts_max, hang_s)
        running = pool.submit(keeper.run)
        until(lambda: say(run_dir, b"") != b"")
        try:
            yield stack, said
        finally:
            assert say(run_dir, msgspec.json.encode(control.Drain())) == b'{"error":""}\n'
            running.result(timeout=20)
            keeper.close()


def say(run_dir: Path, line: bytes) -> bytes:
    """The reply to a line on the control socket; none if nobody listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(f"\0{run_dir}/supervisor")
        except ConnectionRefusedError:
            return b""
        connection.sendall(line + b"\n")
        return connection.recv(1000)


def test_a_death_names_the_role_and_its_status(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir, scheduler="dies")) as stack:
        begin(stack)
        (run_dir / "die").touch()
        with pytest.raises(ChildDied, match=r"the scheduler \(pid \d+\) exited with status 7"):
            upkeep(stack, []).run()
    assert (run_dir.parent / "ends").read_text().split() == ["frontend", "executor"]


def test_a_killed_service_is_named_with_its_signal(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir)) as stack:
        begin(stack)
        os.kill(stack.pids["executor"], signal.SIGKILL)
        with pytest.raises(ChildDied, match=r"the executor .* was killed by SIGKILL"):
            upkeep(stack, []).run()


def test_a_service_that_dies_too_often_is_given_up(run_dir: Path) -> None:
    said: list[str] = []
    with Stack(run_dir, config(run_dir, scheduler="dies")) as stack:
        begin(stack)
        (run_dir / "die").touch()
        with pytest.raises(ChildDied, match=r"exited with status 7, which was death 3 in a row"):
            upkeep(stack, said, restarts_max=2).run()
    assert len(said) == 2


def test_a_dead_service_is_started_again(run_dir: Path) -> None:
    with kept(run_dir) as (stack, said):
        before = stack.pids
        os.kill(before["executor"], signal.SIGKILL)
        until(lambda: stack.pids["executor"] != before["executor"])
        assert {**stack.pids, "executor": 0} == {**before, "executor": 0}
        until(lambda: is_up(run_dir, "executor"))
    assert said == [
        f"the executor (pid {before['executor']}) was killed by SIGKILL; starting it again"
    ]


def test_a_service_without_a_pulse_is_killed_and_started_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor_svc.upkeep.LOOK_S", 0.1)
    with kept(run_dir, hang_s=1.0, scheduler="beats", executor="beats") as (stack, said):
        before = stack.pids
        time.sleep(1.5)  # longer than it takes to be found stuck
        assert stack.pids == before
        os.kill(before["scheduler"], signal.SIGSTOP)
        until(lambda: stack.pids["scheduler"] != before["scheduler"])
        assert {**stack.pids, "scheduler": 0} == {**before, "scheduler": 0}
    assert "made no progress and was killed by SIGKILL" in said[0]


def test_a_restart_on_order_takes_options_and_a_bad_one_is_taken_back(run_dir: Path) -> None:
    with kept(run_dir) as (stack, _):
        before = stack.pids
        control.order(run_dir, control.Restart("scheduler", ("quick",)))
        assert stack.pids["scheduler"] != before["scheduler"]
        assert stack.commands["scheduler"][-1] == "quick"
        (run_dir / "die").touch()
        with pytest.raises(control.ControlError, match="the new scheduler exited with status 7"):
            control.order(run_dir, control.Restart("scheduler", ("silent", "dies")))
        until(lambda: is_up(run_dir, "scheduler"))
        assert stack.commands["scheduler"][-1] == "quick"
        # An executor has to go before its successor comes; here none would come at all.
        with pytest.raises(control.ControlError, match="the new executor exited with status 7"):
            control.order(run_dir, control.Restart("executor", ("dies",)))
        until(lambda: is_up(run_dir, "executor"))
        assert stack.commands["executor"][-1] != "dies"
        with pytest.raises(control.ControlError, match="there is no printer"):
            control.order(run_dir, control.Restart("printer"))


def test_nonsense_is_no_order(run_dir: Path) -> None:
    with kept(run_dir):
        assert b"not an order" in say(run_dir, b"nonsense")


def test_nobody_to_give_an_order_to(run_dir: Path) -> None:
    with pytest.raises(control.ControlError, match="no instance runs in"):
        control.find_instance(run_dir)
    with pytest.raises(control.ControlError, match="does not answer"):
        control.order(run_dir, control.Drain())


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
        begin(stack)
        assert stack.stop() == ["scheduler"]


def test_a_second_interrupt_kills(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir, drain_s=60, frontend="stubborn")) as stack:
        begin(stack)
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
        "stack.wait_ready(lambda up: None); print('ready', flush=True)\n"
        "import time; time.sleep(60)\n"
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
