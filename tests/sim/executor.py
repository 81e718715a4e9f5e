"""The executor of a simulated world: real frames, read when they are executed, and a HashRunner."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from executor_svc.hash_runner import HashRunner
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, ResultFrame, StepResult, StepTiming
from svc_wire.ids import NO_TOKEN, RowStatus
from svc_wire.ring import FRAMES
from tests.support.plans import plan_buffer, result_buffer

F = TypeVar("F")


class _Frames(Generic[F]):
    """FRAMES of them, each made when it is first used: many an executor dies before that."""

    def __init__(self, make: Callable[[int], F]) -> None:
        self._make = make
        self._made: dict[int, F] = {}

    def __getitem__(self, index: int) -> F:
        assert 0 <= index < FRAMES
        if index not in self._made:
            self._made[index] = self._make(index)
        return self._made[index]


class SimExecutor:
    """One life of an executor process, with the ring that it owns."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.runner = HashRunner(capacity, clock_ns=lambda: 0)
        self.epoch = 0
        self.completed = 0
        """The last step of the epoch whose result is written."""
        self.free_at = 0
        """When it will be done with all that was published."""
        self.is_dead = False
        self.masked_rows = 0
        self._plan_buffers = _Frames(lambda _: plan_buffer(capacity))
        self._result_buffers = _Frames(lambda _: result_buffer(capacity))
        self.plans = _Frames(partial(self._plan, writable=True))
        self._plans_read = _Frames(partial(self._plan, writable=False))
        self._results_written = _Frames(partial(self._result, writable=True))
        self.results = _Frames(partial(self._result, writable=False))

    def _plan(self, index: int, *, writable: bool) -> PlanFrame:
        return PlanFrame(self._plan_buffers[index], self.capacity, writable=writable)

    def _result(self, index: int, *, writable: bool) -> ResultFrame:
        return ResultFrame(self._result_buffers[index], self.capacity, writable=writable)

    def begin(self, epoch: int, now: int) -> None:
        """A scheduler takes over; what was in flight is forgotten."""
        self.epoch, self.completed, self.free_at = epoch, 0, now
        self.runner.begin(epoch)

    def execute(self, step: int, *, took_ms: int = 0, broken_row: int | None = None) -> StepResult:
        """Reads the plan from its frame, computes it and writes its result.

        It says that it took `took_ms`, and a millisecond more for each token beyond one a row.
        `broken_row`, mod the rows, comes out as RowStatus.ERROR. Raises FrameError, RunnerError.
        """
        plan = self._plans_read[step % FRAMES].read(epoch=self.epoch, step=step)
        self.runner.submit(plan, received_ns=0)
        result = self.runner.poll()
        assert result is not None
        timing = StepTiming(compute_end_ns=(took_ms + plan.tokens - plan.rows) * 1_000_000)
        result = replace(result, timing=timing)
        self.masked_rows += int(np.count_nonzero(result.row_status == RowStatus.MASKED))
        if broken_row is not None:
            row = broken_row % plan.rows
            if result.row_status[row] != RowStatus.MASKED:
                result.row_status[row], result.row_token[row] = RowStatus.ERROR, NO_TOKEN
        self._results_written[step % FRAMES].write(result)
        self.completed = step
        return result

    def tear_plan(self, step: int, offset: int) -> None:
        raw = self.plans[step % FRAMES].raw
        raw[offset % 64] ^= 0x55

    def tear_result(self, step: int, offset: int) -> None:
        raw = self._results_written[step % FRAMES].raw
        raw[offset % len(raw)] ^= 0x55
