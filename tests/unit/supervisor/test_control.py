"""The control socket among others who may have its name."""

import os
import socket
import threading
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


def test_orders_are_not_told_to_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_uid_of", lambda _: os.geteuid() + 1)
    with Control(tmp_path) as other:
        with pytest.raises(ControlError, match=f"of another user: {os.geteuid() + 1}"):
            order(tmp_path, Drain())
        connection, _ = other._socket.accept()
        with connection:
            assert connection.recv(1) == b"", "nothing was said"


@pytest.mark.parametrize("answered_by", [os.geteuid(), 0])
def test_they_are_told_to_the_same_user_and_to_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered_by: int
) -> None:
    mine = control._uid_of

    def uid_of(connection: socket.socket) -> int:
        is_asked = threading.current_thread() is not threading.main_thread()
        return mine(connection) if is_asked else answered_by

    monkeypatch.setattr(control, "_uid_of", uid_of)
    with Control(tmp_path) as supervisor:

        def obey() -> None:
            received = supervisor.receive()
            assert received is not None
            assert received[0] == Restart("executor")
            received[1].give(Reply(done="restarted"))

        obeying = threading.Thread(target=obey)
        obeying.start()
        assert order(tmp_path, Restart("executor")) == "restarted"
        obeying.join(10)
