"""The scheduler's link to the executor: epochs that end, and the next Hello."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from scheduler_svc.executor_link import Event, ExecutorLink, Lost, Ready
from scheduler_svc.handover import KvState
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.executor_link import (
    PROTOCOL_VERSION,
    Hello,
    StepFailed,
    ToScheduler,
    Welcome,
    to_executor,
    to_scheduler,
)
from svc_wire.ring import ExecutorRing

CAPACITY = Capacity(
    num_blocks=4, block_size=4, rows_max=2, tokens_max=8, lanes=2, model_len_max=16, vocab_size=99
)
MODEL = ModelInfo(name="m", path="", eos_ids=(), dtype="hash", device="cpu")
WAIT_MS = 5_000


class FakeExecutor:
    """An executor's socket and ring, and a link to them."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", run_dir: Path) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        endpoint = f"ipc://{run_dir}/executor.sock"
        self.socket.bind(endpoint)
        self.ring = ExecutorRing.create(run_dir, CAPACITY)
        self.link = ExecutorLink(context, endpoint)
        self._peer = b""

    def hello(self, now: float) -> Hello:
        """The next thing that the link says, if it says Hello; `now` is its time."""
        for _ in range(WAIT_MS // 10):
            self.link.receive(now)
            if self.socket.poll(10):
                self._peer, data = self.socket.recv_multipart()
                message = to_executor.decode(data)
                assert isinstance(message, Hello)
                return message
        raise AssertionError("it does not say Hello")

    def say(self, message: ToScheduler, now: float) -> list[Event]:
        """What the link makes of a message."""
        self.socket.send_multipart([self._peer, to_scheduler.encode(message)])
        assert self.link.socket.poll(WAIT_MS)
        return self.link.receive(now)

    def welcome(self, epoch: int, now: float) -> list[Event]:
        path = str(self.ring.path)
        return self.say(Welcome(PROTOCOL_VERSION, epoch, path, CAPACITY, MODEL), now)


@pytest.fixture
def executor() -> Iterator[FakeExecutor]:
    with tempfile.TemporaryDirectory(prefix="ts-") as folder, zmq.Context() as context:
        fake = FakeExecutor(context, Path(folder))
        yield fake
        fake.link.close()
        fake.ring.unlink()
        fake.socket.close()


def test_an_epoch_that_is_given_up_is_followed_by_a_hello_at_once(executor: FakeExecutor) -> None:
    """The executor lives, and streams stand still: there is nothing to wait for."""
    assert executor.hello(now=100.0) == Hello(PROTOCOL_VERSION, 0)
    assert executor.welcome(7, now=100.0) == [
        Ready(7, CAPACITY, MODEL, KvState(executor.ring.path.name, 0, 0))
    ]
    assert executor.link.begin_anew("unusable result") == [Lost("unusable result")]
    assert executor.hello(now=100.001) == Hello(PROTOCOL_VERSION, 7)


def test_a_failed_step_ends_its_epoch_and_only_that(executor: FakeExecutor) -> None:
    executor.hello(now=100.0)
    executor.welcome(7, now=100.0)
    assert executor.say(StepFailed(6, 3, "late"), now=100.0) == []
    assert executor.say(StepFailed(7, 3, "no memory"), now=100.0) == [
        Lost("step 3 failed: no memory")
    ]
    assert executor.link.epoch is None
    assert executor.hello(now=100.001) == Hello(PROTOCOL_VERSION, 7)
