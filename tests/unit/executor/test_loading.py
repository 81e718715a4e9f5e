"""While the model is loaded: what others see of this process."""

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

from executor_svc import __main__ as entry
from executor_svc import loading
from executor_svc.config import ExecutorConfig
from executor_svc.errors import ExecutorError
from executor_svc.loading import Loading
from executor_svc.runner import Runner
from svc_wire.rundir import RunDir


class Nobody:
    """A mailbox that gets nothing."""

    def __init__(self) -> None:
        self.stopping = False
        self._event = threading.Event()

    def wake(self) -> None:
        self._event.set()

    def block(self, timeout_s: float) -> None:
        self._event.wait(max(0.0, timeout_s))

    def receive(self) -> list[Any]:
        return []


def test_loading_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor kills who shows none; a large model takes longer than that."""
    monkeypatch.setattr(loading, "BEAT_S", 0.01)
    seen = threading.Event()
    pulses: list[None] = []

    def load() -> Runner:
        assert seen.wait(10), "no pulse while it loads"
        raise ExecutorError("enough")

    def pulse() -> None:
        pulses.append(None)
        if len(pulses) == 3:
            seen.set()

    mailbox: Any = Nobody()
    with pytest.raises(ExecutorError, match="enough"):
        Loading(load, mailbox, pulse).run()


def test_the_ring_of_a_dead_executor_goes_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks takes a ring beside a held lock for the sign that the model is loaded."""
    run_dir = RunDir(tmp_path / "r")
    (run_dir.path / "ring-1-dead").touch()

    def load(_: ExecutorConfig) -> Runner:
        assert list(run_dir.path.glob("ring-*")) == []
        raise ExecutorError("enough")

    monkeypatch.setattr(entry, "make_runner", load)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(ExecutorError, match="enough"):
        entry._run(ExecutorConfig(model="hash"), run_dir, structlog.get_logger())
