"""Orders to a supervisor: services are replaced while it goes on watching everybody."""

import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from supervisor_svc import control, upkeep
from supervisor_svc.backoff import Backoff
from supervisor_svc.control import ControlError, Restart
from supervisor_svc.stack import EXIT_USAGE
from svc_shell.presence import is_up
from tests.support.fake_stack import kept, say, until
from tests.support.processes import users_of

pytestmark = pytest.mark.process


def test_a_restart_on_order_takes_options_and_a_bad_one_is_taken_back(run_dir: Path) -> None:
    with kept(run_dir) as (stack, _):
        before = stack.pids
        control.order(run_dir, Restart("scheduler", ("quick",)))
        assert stack.pids["scheduler"] != before["scheduler"]
        assert stack.commands["scheduler"][-1] == "quick"
        (run_dir / "die").touch()
        with pytest.raises(ControlError, match="the new scheduler exited with status 7"):
            control.order(run_dir, Restart("scheduler", ("silent", "dies")))
        until(lambda: is_up(run_dir, "scheduler"))
        assert stack.commands["scheduler"][-1] == "quick"
        # An executor has to go before its successor comes; here none would come at all.
        with pytest.raises(ControlError, match="the new executor exited with status 7"):
            control.order(run_dir, Restart("executor", ("dies",)))
        until(lambda: is_up(run_dir, "executor"))
        assert stack.commands["executor"][-1] != "dies"
        with pytest.raises(ControlError, match="there is no printer"):
            control.order(run_dir, Restart("printer"))


def test_nonsense_is_no_order(run_dir: Path) -> None:
    with kept(run_dir):
        assert b"not an order" in say(run_dir, b"nonsense")


def test_who_says_nothing_does_not_hold_up_others(run_dir: Path) -> None:
    with kept(run_dir), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"\0{run_dir}/supervisor")
        assert b"not an order" in say(run_dir, b"nonsense")


def test_an_order_without_end_is_cut_off(run_dir: Path) -> None:
    with kept(run_dir), socket.socket(socket.AF_UNIX) as endless:
        endless.connect(f"\0{run_dir}/supervisor")
        with pytest.raises(ConnectionError):
            endless.sendall(bytes(1000 * control.ORDER_BYTES_MAX))


def test_what_cannot_be_written_as_text_is_a_wrong_order(run_dir: Path) -> None:
    with kept(run_dir), pytest.raises(ControlError, match="not UTF-8") as refused:
        control.order(run_dir, Restart("scheduler", ("--policy=\udcff",)))
    assert refused.value.exit_status == EXIT_USAGE


def test_nobody_to_give_an_order_to(run_dir: Path) -> None:
    with pytest.raises(ControlError, match="no instance runs in"):
        control.find_instance(run_dir)
    with pytest.raises(ControlError, match="is starting or shutting down"):
        control.order(run_dir, control.Drain())


def test_a_wrong_option_disturbs_nobody_and_its_reason_is_told(run_dir: Path) -> None:
    with kept(run_dir) as (stack, said):
        before = stack.pids
        for role in ("scheduler", "executor", "frontend"):
            said_so = f"new {role} .* not start: Invalid value: bad"
            with pytest.raises(ControlError, match=said_so) as refused:
                control.order(run_dir, Restart(role, ("wrong",)))
            assert refused.value.exit_status == EXIT_USAGE
        assert stack.pids == before
        assert stack.commands["scheduler"][-1] != "wrong"
    assert said[-1].endswith("Invalid value: bad; the frontend stays as it was")


def test_a_check_disturbs_nobody(run_dir: Path) -> None:
    with kept(run_dir) as (stack, _):
        before, commands = stack.pids, dict(stack.commands)
        for role in ("scheduler", "executor", "frontend"):
            checked = control.order(run_dir, Restart(role, ("quick",), checks_only=True))
            found = f"found no fault in the options of the {role}; nothing was restarted"
            assert checked == found
            with pytest.raises(ControlError, match="Invalid value: bad") as refused:
                control.order(run_dir, Restart(role, ("wrong",), checks_only=True))
            assert refused.value.exit_status == EXIT_USAGE
        assert (stack.pids, stack.commands) == (before, commands)


@pytest.mark.parametrize(
    ("role", "argument", "why"),
    [
        ("frontend", "--port=1", "does not move the front ends.* for another --port, drain"),
        ("frontend", "--host", "does not move the front ends.* for another --host, drain"),
        ("frontend", "--metrics-port", "does not move the front ends.* for another --metrics-port"),
        ("frontend", "--name=frontend-7", "--name is not for an order to say"),
        ("executor", "--check", "--check is not for an order to say"),
        ("scheduler", "--run-dir", "--run-dir is not for an order to say"),
    ],
)
def test_what_an_order_may_not_say(run_dir: Path, role: str, argument: str, why: str) -> None:
    with kept(run_dir) as (stack, _):
        before = stack.pids
        with pytest.raises(ControlError, match=why) as refused:
            control.order(run_dir, Restart(role, (argument, "1")))
        assert (refused.value.exit_status, stack.pids) == (EXIT_USAGE, before)


def test_what_was_done_is_told(run_dir: Path) -> None:
    with kept(run_dir) as (stack, said):
        for role in ("executor", "scheduler", "frontend"):
            before = stack.pids[role]
            done = control.order(run_dir, Restart(role))
            told = rf"restarted the {role} \(pid {stack.pids[role]}, was {before}\) in \d+\.\d s"
            vacant = "" if role == "frontend" else r", of which \d+\.\d s without one"
            assert re.fullmatch(told + vacant, done)
            assert said[-1] == done


def test_everybody_is_watched_while_a_service_is_replaced(run_dir: Path) -> None:
    with kept(run_dir) as (stack, _), ThreadPoolExecutor(1) as pool:
        before = stack.pids
        order = pool.submit(control.order, run_dir, Restart("executor", ("silent", "dies")))
        until(lambda: stack.pids["executor"] != before["executor"])
        os.kill(before["scheduler"], signal.SIGKILL)
        until(lambda: stack.pids["scheduler"] != before["scheduler"])
        with pytest.raises(ControlError, match="the executor is being replaced already"):
            control.order(run_dir, Restart("executor"))
        assert not order.done()
        (run_dir / "die").touch()
        with pytest.raises(ControlError, match="the new executor exited with status 7"):
            order.result(timeout=20)


@pytest.mark.parametrize("checks_only", [False, True])
def test_a_service_is_watched_while_options_for_it_are_checked(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, checks_only: bool
) -> None:
    """That may take minutes: a model may have to be fetched for it."""
    monkeypatch.setattr(upkeep, "REPLACED_HANG_S", 0.1)
    monkeypatch.setattr(upkeep, "LOOK_S", 0.1)
    restart = Restart("scheduler", ("ponders",), checks_only)
    with ThreadPoolExecutor(1) as pool:
        with kept(run_dir, scheduler="beats") as (stack, _):
            before = psutil.Process(stack.pids["scheduler"])
            order = pool.submit(control.order, run_dir, restart)
            until(lambda: any("--check" in user.cmdline() for user in users_of(run_dir)))
            before.suspend()
            time.sleep(1.0)  # it is given as long as ever
            assert before.is_running()
            before.kill()
            until(lambda: stack.pids["scheduler"] != before.pid, timeout_s=10.0)
            assert not order.done()
        with pytest.raises(ControlError, match="the instance is shutting down"):
            order.result(timeout=20)


def test_a_check_that_fails_starts_nobody(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has died meanwhile is started again when its pause is over."""
    monkeypatch.setattr(Backoff, "pause_s", lambda *_: 3.0)
    with ThreadPoolExecutor(1) as pool, kept(run_dir) as (stack, said):
        before = stack.pids["scheduler"]
        order = pool.submit(control.order, run_dir, Restart("scheduler", ("ponders",)))
        until(lambda: any("--check" in user.cmdline() for user in users_of(run_dir)))
        os.kill(before, signal.SIGKILL)
        until(lambda: len(said) == 2)
        [check] = [user for user in users_of(run_dir) if "--check" in user.cmdline()]
        check.kill()
        with pytest.raises(ControlError, match="does not start: was killed by SIGKILL"):
            order.result(timeout=20)
        assert stack.pids["scheduler"] == before
        until(lambda: stack.pids["scheduler"] != before)


@pytest.mark.parametrize(
    ("role", "behaviour", "what"),
    [
        ("scheduler", "ponders", "has not checked its options"),
        ("scheduler", "silent", "is not up"),
        ("executor", "silent", "is not up"),
    ],
)
def test_each_state_of_a_replacement_has_a_bound(
    run_dir: Path, role: str, behaviour: str, what: str
) -> None:
    with kept(run_dir, ready_s=3.0) as (stack, _):
        began_s = time.monotonic()
        with pytest.raises(ControlError, match=f"the new {role} {what} within 3 s"):
            control.order(run_dir, Restart(role, (behaviour,)))
        assert time.monotonic() - began_s < 10
        until(lambda: is_up(run_dir, role))
        assert stack.commands[role][-1] != behaviour


def test_an_executor_that_leaves_has_the_time_of_a_long_step(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be silent for so long; nobody stands beside it who could take its place."""
    monkeypatch.setattr(upkeep, "REPLACED_HANG_S", 0.1)
    monkeypatch.setattr(upkeep, "LOOK_S", 0.1)
    with kept(run_dir, executor="beats") as (stack, _), ThreadPoolExecutor(1) as pool:
        before = psutil.Process(stack.pids["executor"])
        time.sleep(0.5)  # only what has shown a pulse can be found without one
        before.suspend()
        order = pool.submit(control.order, run_dir, Restart("executor"))
        time.sleep(1.0)  # longer than others would have
        assert before.is_running()
        before.resume()
        order.result(timeout=20)
        assert stack.pids["executor"] != before.pid
    assert (run_dir.parent / "ends").read_text().split()[0] == "executor", "it ended by itself"


def test_a_successor_that_never_takes_over_is_given_up(run_dir: Path) -> None:
    with kept(run_dir, ready_s=2.0, scheduler="deaf") as (stack, _):
        before = stack.pids
        with pytest.raises(ControlError, match="has not taken over within 2 s"):
            control.order(run_dir, Restart("scheduler"))
        assert stack.pids == before


def test_an_order_does_not_outlive_the_instance(run_dir: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with kept(run_dir) as (stack, _):
            before = stack.pids["executor"]
            order = pool.submit(control.order, run_dir, Restart("executor", ("silent",)))
            until(lambda: stack.pids["executor"] != before)
        with pytest.raises(ControlError, match="the instance is shutting down"):
            order.result(timeout=20)


def test_an_order_that_is_not_heard_any_more(run_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{run_dir}/supervisor")
        listener.listen()

        def hang_up() -> None:
            listener.accept()[0].close()

        threading.Thread(target=hang_up).start()
        with pytest.raises(ControlError, match="is starting or shutting down"):
            control.order(run_dir, Restart("scheduler"))
