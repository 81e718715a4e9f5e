"""Several front ends under one supervisor: started, watched, replaced one by one, stopped."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from supervisor_svc import control, stack, upkeep
from supervisor_svc.control import ControlError, Restart
from supervisor_svc.stack import Stack
from svc_shell.presence import holder, is_up
from tests.support.fake_stack import begin, config, kept, until

pytestmark = pytest.mark.process

NAMES = ("frontend", "frontend-2", "frontend-3")


def test_each_has_a_name_and_all_have_the_port_of_the_first(run_dir: Path) -> None:
    with Stack(run_dir, config(run_dir, frontends=3)) as it:
        begin(it)
        assert {name for name in it.children if name.startswith("frontend")} == set(NAMES)
        until(lambda: all(holder(run_dir, name) == it.pids[name] for name in NAMES))
        joined = {tuple(it.commands[name][-3:]) for name in NAMES}
        [(port, number, share)] = joined
        assert (port, share) == ("--port", "--share-port")
        assert int(number) > 0
        assert it.stop() == []


def test_they_are_stopped_together(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "STOP_TIMEOUT_S", 0.5)
    with Stack(run_dir, config(run_dir, frontends=3, drain_s=1.0, frontend="stubborn")) as it:
        begin(it)
        until(lambda: all(is_up(run_dir, name) for name in NAMES))
        began_s = time.monotonic()
        assert set(it.stop()) == set(NAMES)
        assert time.monotonic() - began_s < 4.0, "they drain at the same time"


def test_one_that_dies_is_started_again_under_its_name(run_dir: Path) -> None:
    with kept(run_dir, frontends=2) as (it, said):
        before = it.pids
        os.kill(before["frontend-2"], signal.SIGKILL)
        until(lambda: holder(run_dir, "frontend-2") not in (None, before["frontend-2"]))
        assert it.pids["frontend"] == before["frontend"]
    assert any(line.startswith("the frontend-2 (pid") for line in said)


def test_one_without_a_pulse_is_killed_though_the_others_have_theirs(run_dir: Path) -> None:
    with kept(run_dir, frontends=2, hang_s=2.0, frontend="beats") as (it, said):
        before = it.pids
        until(lambda: all(is_up(run_dir, name) for name in NAMES[:2]))
        time.sleep(1.5)  # only what has shown a pulse can be found without one
        os.kill(before["frontend"], signal.SIGSTOP)
        until(lambda: it.pids["frontend"] != before["frontend"])
        assert it.pids["frontend-2"] == before["frontend-2"]
    assert any("made no progress" in line for line in said)


def test_an_order_replaces_all_and_does_not_wait_for_the_streams_of_the_old_ones(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "STOP_TIMEOUT_S", 1.0)
    with kept(run_dir, frontends=2, frontend="lingers") as (it, _):
        until(lambda: all(is_up(run_dir, name) for name in NAMES[:2]))
        before = it.pids
        done = control.order(run_dir, Restart("frontend", ("quick",)))
        assert done.startswith("restarted 2 front ends in ")
        for name in NAMES[:2]:
            assert it.pids[name] != before[name]
            assert holder(run_dir, name) == it.pids[name]
            assert it.commands[name][-1] == "quick"
        assert psutil.pid_exists(before["frontend-2"]), "it lets its streams finish"
        until(lambda: not it.leaving)
        assert not psutil.pid_exists(before["frontend"]), "but not for ever"
        assert not psutil.pid_exists(before["frontend-2"])


def test_an_order_ends_one_that_hangs(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "REPLACED_HANG_S", 1.0)
    with kept(run_dir, hang_s=50.0, frontend="beats") as (it, _):
        before = it.pids["frontend"]
        until(lambda: is_up(run_dir, "frontend"))
        time.sleep(1.5)  # only what has shown a pulse can be found without one
        os.kill(before, signal.SIGSTOP)
        control.order(run_dir, Restart("frontend"))
        assert holder(run_dir, "frontend") == it.pids["frontend"] != before


def test_old_ones_that_still_linger_end_with_the_instance(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "STOP_TIMEOUT_S", 1.0)
    with kept(run_dir, frontend="lingers") as (it, _):
        until(lambda: is_up(run_dir, "frontend"))
        control.order(run_dir, Restart("frontend"))
        assert len(it.leaving) == 1


def test_a_successor_that_fails_in_its_place_is_replaced_while_the_old_one_still_lingers(
    run_dir: Path,
) -> None:
    with kept(run_dir, frontend="lingers") as (it, _):
        until(lambda: is_up(run_dir, "frontend"))
        before = it.pids["frontend"]
        with pytest.raises(ControlError, match="the new frontend exited with status 7"):
            control.order(run_dir, Restart("frontend", ("usurps",)))
        until(lambda: is_up(run_dir, "frontend"))
        assert holder(run_dir, "frontend") == it.pids["frontend"] != before
        assert it.commands["frontend"][-1] != "usurps"
        assert psutil.pid_exists(before), "it lets its streams finish"
