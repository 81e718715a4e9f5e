"""One epoch with one scheduler: plans from the ring to the runner, results from it to the ring."""

import time

from executor_svc.runner import Runner
from svc_wire.frames import StepResult
from svc_wire.ring import DEPTH_MAX, ExecutorRing

VOID = (0, 0)
"""The state of KV memory of which nothing is known."""


class Session:
    """The steps of one epoch. RunnerError or FrameError from any method: the epoch is over."""

    def __init__(self, peer: bytes, epoch: int, runner: Runner, ring: ExecutorRing) -> None:
        self.peer = peer
        self.epoch = epoch
        self.submitted = 0
        self.completed = 0
        self._runner = runner
        self._ring = ring

    @property
    def in_flight(self) -> int:
        return self.submitted - self.completed

    def kv_after(self, before: tuple[int, int]) -> tuple[int, int]:
        """(epoch, step) whose state KV memory is in if the session ends now.

        `before` is what it was when it began. Steps that are cut off leave it VOID.
        """
        if self.in_flight:
            return VOID
        return (self.epoch, self.completed) if self.completed else before

    @property
    def has_plan(self) -> bool:
        """A published plan waits for its submission."""
        epoch, step = self._ring.last_plan()
        return epoch == self.epoch and step > self.submitted and self.in_flight <= DEPTH_MAX

    def submit_published(self) -> bool:
        """Submits what the scheduler has published; whether there was anything."""
        worked = False
        while self.has_plan:
            received_ns = time.monotonic_ns()
            step = self.submitted + 1
            plan = self._ring.plan_frame(step).read(epoch=self.epoch, step=step)
            self._runner.submit(plan, received_ns)
            self.submitted = step
            worked = True
        return worked

    def collect(self, timeout_s: float) -> StepResult | None:
        """The oldest step's result, waiting for it at most so long."""
        if not self.in_flight:
            return None
        return self._runner.wait(timeout_s) if timeout_s else self._runner.poll()

    def publish(self, result: StepResult) -> bool:
        """Hands a result over; True: the scheduler sleeps, ring the doorbell."""
        self.completed += 1
        assert (result.epoch, result.step) == (self.epoch, self.completed)
        self._ring.result_frame(result.step).write(result)
        return self._ring.publish_result(self.epoch, result.step)
