"""The control socket among others who may have its name."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor_svc import control
from supervisor_svc.control import Control, ControlError, Drain, Reply, Restart, order
from supervisor_svc.stack import StackError


def test_a_name_that_is_taken_is_said_in_a_sentence(tmp_path: Path) -> None:
    with (
        Control(tmp_path),
        pytest.raises(StackError, match=f"cannot take orders for {tmp_path}: Address already in"),
    ):
        Control(tmp_path)
    with Control(tmp_path):
        pass  # it is free again


ME, ROOT, ANOTHER = 1234, 0, 1235


@pytest.fixture
def answered_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says as whom the kernel knows the instance; who gives orders, in the main thread, is me."""

    def say(uid: int) -> None:
        def uid_of(_: socket.socket) -> int:
            asks = threading.current_thread() is threading.main_thread()
            return uid if asks else ME

        monkeypatch.setattr(control, "_uid_of", uid_of)
        monkeypatch.setattr(os, "geteuid", lambda: ME)

    return say


def test_orders_are_not_told_to_another_user(
    tmp_path: Path, answered_by: Callable[[int], None]
) -> None:
    answered_by(ANOTHER)
    heard: list[object] = []
    with Control(tmp_path) as other:

        def listen() -> None:
            received = other.receive()
            heard.append(received)
            if received is not None:
                received[1].close()

        listening = threading.Thread(target=listen)
        listening.start()
        with pytest.raises(ControlError, match=f"of another user: {ANOTHER}"):
            order(tmp_path, Drain())
        listening.join(10)
    assert heard == [None]


@pytest.mark.parametrize("uid", [ME, ROOT])
def test_they_are_told_to_the_same_user_and_to_root(
    tmp_path: Path, uid: int, answered_by: Callable[[int], None]
) -> None:
    answered_by(uid)
    with Control(tmp_path) as supervisor:

        def obey() -> None:
            received = supervisor.receive()
            assert received is not None
            assert received[0] == Restart("executor")
            received[1].give(Reply(done="restarted"))

        obeying = threading.Thread(target=obey, daemon=True)
        obeying.start()
        assert order(tmp_path, Restart("executor")) == "restarted"
        obeying.join(10)
