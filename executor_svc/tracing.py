"""A record of every step in a file: for benchmarks and timelines, not for production.

    python: np.fromfile(path, tracing.STEP)

A record says when the scheduler had written the plan, and when the step passed its stations on the
executor's host and on the device. Host times are CLOCK_MONOTONIC; so is the plan's, since scheduler
and executor share a machine.
"""

from collections import deque
from pathlib import Path

import numpy as np
import structlog

from executor_svc.errors import TraceError
from executor_svc.runner import Runner
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.frames import BatchPlan, StepResult
from svc_wire.layout import TIMING

STEP = np.dtype(
    [
        ("epoch", "<i8"),
        ("step", "<i8"),
        ("rows", "<i4"),
        ("tokens", "<i4"),
        ("written_ns", "<i8"),  # the scheduler had completed the plan
        *((name, "<i8") for name in TIMING.names or ()),
    ]
)

log = structlog.get_logger(service="executor")


class TracedRunner:
    """A Runner that does what `runner` does, and writes a record of each completed step, up to one
    that cannot be written."""

    def __init__(self, runner: Runner, path: Path) -> None:
        """Raises TraceError."""
        self._runner = runner
        self._plans: deque[tuple[int, int, int]] = deque()  # rows, tokens, written_ns
        self._has_failed = False
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise TraceError(f"cannot write the trace {path}: {error.strerror}") from error

    @property
    def capacity(self) -> Capacity:
        return self._runner.capacity

    @property
    def model(self) -> ModelInfo:
        return self._runner.model

    def begin(self, epoch: int) -> None:
        self._plans.clear()
        self._runner.begin(epoch)

    def submit(self, plan: BatchPlan, received_ns: int) -> None:
        self._plans.append((plan.rows, plan.tokens, plan.written_ns))
        self._runner.submit(plan, received_ns)

    def poll(self) -> StepResult | None:
        return self._record(self._runner.poll())

    def wait(self, timeout_s: float) -> StepResult | None:
        return self._record(self._runner.wait(timeout_s))

    def close(self) -> None:
        self._file.close()
        self._runner.close()

    def _record(self, result: StepResult | None) -> StepResult | None:
        if result is not None:
            rows, tokens, written_ns = self._plans.popleft()
            stations = (result.epoch, result.step, rows, tokens, written_ns)
            record = np.array((*stations, *result.timing.as_tuple()), STEP)
            self._write(record.tobytes())
        return result

    def _write(self, record: bytes) -> None:
        if self._has_failed:
            return
        try:
            whole = self._file.write(record) == len(record)
            reason = "no space is left"
        except OSError as error:
            whole, reason = False, str(error.strerror)
        if not whole:  # another one after it would not be found
            self._has_failed = True
            log.warning("the trace ends here", path=self._file.name, error=reason)
