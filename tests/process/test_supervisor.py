"""The supervisor's own behaviour, with fake services in the place of the real ones."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from supervisor_svc.control import Restart
from supervisor_svc.stack import EXIT_USAGE, ChildDied, NotReadyInTime, Stack
from supervisor_svc.upkeep import Upkeep
from svc_shell.parent import PARENT_PID
from svc_shell.presence import is_up
from tests.support.fake_stack import (
    ROLES,
    begin,
    config,
    ignore,
    kept,
    say,
    until,
    upkeep,
)
from tests.support.processes import users_of

pytestmark = pytest.mark.process


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


def test_a_death_names_the_role_and_its_status(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir, scheduler="dies")) as stack:
        begin(stack)
        (run_dir / "die").touch()
        with pytest.raises(ChildDied, match=r"the scheduler \(pid \d+\) exited with status 7"):
            upkeep(stack, []).run()
    assert (run_dir.parent / "ends").read_text().split() == ["frontend", "executor"]


def test_wrong_options_of_a_service_are_wrong_options_of_the_instance(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir, executor="silent", scheduler="refuses")) as stack:
        stack.start()
        with pytest.raises(ChildDied, match=r"the scheduler .* exited with status 2") as died:
            stack.wait_ready(ignore)
    assert died.value.exit_status == EXIT_USAGE


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


@pytest.mark.timeout(60)  # otherwise it is started again for ever
def test_a_service_that_takes_long_to_come_up_has_not_lived_long(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor_svc.backoff.HEALTHY_S", 0.5)
    monkeypatch.setattr("supervisor_svc.upkeep.LOOK_S", 0.1)
    with Stack(run_dir, config(run_dir, scheduler="late")) as stack:
        begin(stack)
        (run_dir / "die").touch()
        os.kill(stack.pids["scheduler"], signal.SIGKILL)
        with pytest.raises(ChildDied, match="which was death 3 in a row"):
            upkeep(stack, [], restarts_max=2).run()


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


def test_a_death_before_readiness_is_not_waited_out(run_dir: Path) -> None:
    (run_dir / "die").touch()
    started = time.monotonic()
    with Stack(run_dir, config(run_dir, executor="silent dies", frontend="silent")) as stack:
        stack.start()
        with pytest.raises(ChildDied, match="executor"):
            stack.wait_ready(ignore)
    assert time.monotonic() - started < 15


def test_readiness_has_a_bound_and_says_what_is_missing(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir, ready_s=0.5, frontend="silent")) as stack:
        stack.start()
        until(lambda: is_up(run_dir, "scheduler") and is_up(run_dir, "executor"))
        with pytest.raises(NotReadyInTime, match=r"not ready after 0.5 s: no sign of the frontend"):
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
    assert not users_of(run_dir)


def interrupt_start(monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """Ctrl-C comes when the nth process from now on is there and nobody has noted it yet."""
    start, left = subprocess.Popen.__init__, iter(range(1, nth + 1))

    def interrupted(*arguments: Any, **options: Any) -> None:
        start(*arguments, **options)
        if next(left, nth) == nth:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted)


@pytest.mark.parametrize("nth", [1, 3])
def test_an_interrupt_in_the_middle_of_a_start_leaves_nobody(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    interrupt_start(monkeypatch, nth)
    with pytest.raises(KeyboardInterrupt), Stack(run_dir, config(run_dir)) as stack:
        stack.start()
    assert not users_of(run_dir)


@pytest.mark.parametrize("nth", [1, 2, 3, 4], ids=["check", "successor", "check 2", "successor 2"])
def test_an_interrupt_in_the_middle_of_a_replacement_leaves_nobody(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    order = msgspec.json.encode(Restart("frontend"))
    giver = threading.Thread(target=until, args=[lambda: say(run_dir, order) != b""])
    with Stack(run_dir, config(run_dir, frontends=2)) as stack:
        begin(stack)
        until(lambda: is_up(run_dir, "frontend-2"))
        interrupt_start(monkeypatch, nth)
        giver.start()
        with pytest.raises(KeyboardInterrupt):
            upkeep(stack, []).run()
    giver.join()
    assert not users_of(run_dir)


def test_an_interrupt_when_an_order_is_obeyed_kills_nobody(run_dir: Path) -> None:
    """The new service may have streams by then, which the stop lets finish."""

    def interrupted(line: str) -> None:
        if line.startswith("restarted the "):
            raise KeyboardInterrupt

    order = msgspec.json.encode(Restart("scheduler"))
    giver = threading.Thread(target=until, args=[lambda: say(run_dir, order) != b""])
    with Stack(run_dir, config(run_dir)) as stack:
        begin(stack)
        before = stack.pids["scheduler"]
        giver.start()
        with pytest.raises(KeyboardInterrupt):
            Upkeep(stack, restarts_max=0, hang_timeout_s=60.0, tell=interrupted).run()
        assert stack.pids["scheduler"] != before
        assert not stack.children["scheduler"].has_ended
    giver.join()


def test_a_start_again_that_is_interrupted_leaves_nobody(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(run_dir, config(run_dir)) as stack:
        begin(stack)
        interrupt_start(monkeypatch, 1)
        os.kill(stack.pids["scheduler"], signal.SIGKILL)
        with pytest.raises(KeyboardInterrupt):
            upkeep(stack, [], restarts_max=1).run()
    assert not users_of(run_dir)


def test_an_interrupt_while_the_last_are_killed_spares_nobody(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one ends the stop, and the second one nothing."""
    kill, interrupts = subprocess.Popen.kill, iter([signal.SIGINT, signal.SIGINT])

    def interrupted(process: "subprocess.Popen[bytes]") -> None:
        if (signum := next(interrupts, None)) is not None:
            signal.raise_signal(signum)
        kill(process)

    monkeypatch.setattr("supervisor_svc.stack.STOP_TIMEOUT_S", 0.3)
    monkeypatch.setattr(subprocess.Popen, "kill", interrupted)
    stubborn = config(run_dir, frontend="stubborn")
    with pytest.raises(KeyboardInterrupt), Stack(run_dir, stubborn) as stack:
        begin(stack)
    assert next(interrupts, None) is None
    assert not users_of(run_dir)


@pytest.mark.parametrize("role", ROLES)
def test_a_service_whose_supervisor_is_gone_makes_nothing(run_dir: Path, role: str) -> None:
    """It was started just before that, and comes to its runtime directory when that is removed."""
    removed = run_dir.parent / "removed"
    command = [sys.executable, "-P", "-m", f"{role}_svc", "--run-dir", str(removed)]
    env = os.environ | {PARENT_PID: str(os.getppid())}
    assert subprocess.run(command, env=env, timeout=60).returncode == -signal.SIGHUP
    assert not removed.exists()


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
        fakes = users_of(run_dir)
        assert len(fakes) == 3
        supervisor.kill()
        supervisor.wait(10)
    gone, alive = psutil.wait_procs(fakes, timeout=5)
    assert (len(gone), alive) == (3, [])
