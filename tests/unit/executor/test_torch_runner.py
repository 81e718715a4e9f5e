"""The device thread of the CPU runner between two epochs. The step is a fake, no model runs."""

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from executor_svc.torch_runner import _NO_EPOCH, TorchRunner

pytestmark = pytest.mark.model


class FailingOnce:
    """A step of epoch 1 fails once it is told to; one of epoch 2 has a result."""

    def __init__(self) -> None:
        self.begun, self.may_fail = threading.Event(), threading.Event()

    def forget(self) -> None:
        pass

    def run(self, job: Any) -> str:
        if job.plan.epoch == 2:
            return "a result"
        self.begun.set()
        assert self.may_fail.wait(10)
        raise RuntimeError("no memory")


def test_a_step_that_fails_late_does_not_end_the_next_epoch() -> None:
    step = FailingOnce()
    runner: Any = TorchRunner.__new__(TorchRunner)
    runner._step, runner._epoch = step, _NO_EPOCH
    runner._jobs, runner._done = queue.SimpleQueue(), queue.SimpleQueue()
    runner._thread = threading.Thread(target=runner._device, daemon=True)
    runner._thread.start()
    runner.begin(1)
    runner.submit(SimpleNamespace(epoch=1, step=1), 0)
    assert step.begun.wait(10)
    threading.Timer(0.2, step.may_fail.set).start()  # while `begin` waits for the running step
    runner.begin(2)
    runner.submit(SimpleNamespace(epoch=2, step=1), 0)
    assert runner.wait(10) == "a result"
    runner.close()
