"""The executor of a simulated world: real frames, read when they are executed, and a HashRunner."""

from dataclasses import replace

import numpy as np

from executor_svc.hash_runner import HashRunner
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, ResultFrame, StepResult, StepTiming
from svc_wire.ids import NO_TOKEN, RowStatus
from svc_wire.ring import FRAMES
from tests.support.plans import plan_buffer, result_buffer


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
        self._plan_buffers = [plan_buffer(capacity) for _ in range(FRAMES)]
        self._result_buffers = [result_buffer(capacity) for _ in range(FRAMES)]
        self.plans = [PlanFrame(buffer, capacity, writable=True) for buffer in self._plan_buffers]
        self._plans_read = [
            PlanFrame(buffer, capacity, writable=False) for buffer in self._plan_buffers
        ]
        self._results_written = [
            ResultFrame(buffer, capacity, writable=True) for buffer in self._result_buffers
        ]
        self.results = [
            ResultFrame(buffer, capacity, writable=False) for buffer in self._result_buffers
        ]

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
