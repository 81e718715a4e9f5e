"""The scheduler's end of an executor process, for tests: handshake, and a Runner over the ring."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from executor_svc.runner import RunnerError
from svc_wire.executor_link import (
    PROTOCOL_VERSION,
    Beat,
    Hello,
    PlanReady,
    StepDone,
    StepFailed,
    ToExecutor,
    ToScheduler,
    Welcome,
    to_executor,
    to_scheduler,
)
from svc_wire.frames import BatchPlan, StepResult
from svc_wire.ring import SchedulerRing
from svc_wire.rundir import RunDir

DEADLINE_S = 60.0


class ExecutorProcess:
    """`python -m executor_svc` in a runtime directory of its own; killed when the block ends."""

    def __init__(
        self,
        run_dir: Path,
        *options: str,
        env: dict[str, str] | None = None,
        preexec: Callable[[], None] | None = None,
    ) -> None:
        self.run_dir = RunDir(run_dir)
        self.log_path = run_dir / "executor.log"
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "executor_svc", "--run-dir", str(run_dir), *options],
                stderr=log,
                env=os.environ | (env or {}),
                preexec_fn=preexec,
            )

    def __enter__(self) -> "ExecutorProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def end(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal; the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(DEADLINE_S)


class Peer:
    """A DEALER that talks to an executor."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()

    def send(self, message: ToExecutor) -> None:
        self.send_bytes(to_executor.encode(message))

    def send_bytes(self, data: bytes) -> None:
        self._socket.send(data)

    def receive(self, timeout_s: float = DEADLINE_S) -> ToScheduler | None:
        if not self._socket.poll(int(timeout_s * 1000)):
            return None
        return to_scheduler.decode(self._socket.recv())

    def receive_no_beat(self) -> ToScheduler:
        """The next message that is not a Beat."""
        while (message := self.receive()) is not None:
            if not isinstance(message, Beat):
                return message
        raise AssertionError("the executor is silent")

    def hello(self, epoch_seen: int = 0) -> Welcome:
        self.send(Hello(PROTOCOL_VERSION, epoch_seen))
        while isinstance(answer := self.receive_no_beat(), StepDone):
            pass  # of the epoch before
        assert isinstance(answer, Welcome), answer
        return answer


class RemoteRunner:
    """A Runner whose steps are executed by an executor process."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._welcome = peer.hello()
        self.model = self._welcome.model
        self.capacity = self._welcome.capacity
        self.ring = SchedulerRing.attach(Path(self._welcome.ring_path), self.capacity)
        self._rows: dict[int, int] = {}
        self._collected = 0

    @property
    def epoch(self) -> int:
        return self._welcome.epoch

    def begin(self, epoch: int) -> None:
        assert epoch == self.epoch

    def submit(self, plan: BatchPlan, received_ns: int) -> None:
        self.ring.plan_frame(plan.step).raw[: len(plan.raw)] = plan.raw
        self._rows[plan.step] = plan.rows
        if self.ring.publish_plan(plan.epoch, plan.step):
            self._peer.send(PlanReady(plan.epoch, plan.step))

    def poll(self) -> StepResult | None:
        step = self._collected + 1
        if self.ring.last_result() < (self.epoch, step):
            return None
        self._collected = step
        rows = self._rows.pop(step)
        return self.ring.result_frame(step).read(epoch=self.epoch, step=step, rows=rows)

    def wait(self, timeout_s: float) -> StepResult | None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.ring.set_waiting(True)
            result = self.poll()
            if result is None:
                message = self._peer.receive(timeout_s=1.0)
                if isinstance(message, StepFailed):
                    raise RunnerError(message.reason)
            self.ring.set_waiting(False)
            if result is not None:
                return result
        return None

    def close(self) -> None: ...
