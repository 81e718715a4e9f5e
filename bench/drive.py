"""Runs requests to their end through the real scheduler, the real frames and a runner, in one
process.

The loop is the one that scheduler and executor run between them, without their sockets: it
publishes plans while the depth allows, then waits for the oldest result and commits it.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from executor_svc.runner import Runner
from scheduler_svc.core.policies import Fcfs
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Request, SchedulerConfig
from svc_wire.frames import StepTiming
from svc_wire.ring import ExecutorRing, SchedulerRing

_STEP_TIMEOUT_S = 60.0


@dataclass(slots=True, eq=False)
class StepRecord:
    """One committed step."""

    rows: int
    tokens: int
    """Input tokens of the step."""
    published_ns: int
    timing: StepTiming

    @property
    def is_decode(self) -> bool:
        return self.rows == self.tokens


@dataclass(slots=True, eq=False)
class Run:
    """What a run of requests brought."""

    seconds: float = 0.0
    steps: list[StepRecord] = field(default_factory=list)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    preemptions: int = 0
    swaps: int = 0


class Driver:
    """A scheduler and a runner in one process, joined by a real ring."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._epoch = 0
        self._directory = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="twostroke-bench-")
        self._executor = ExecutorRing.create(Path(self._directory.name), runner.capacity)
        self._frames = SchedulerRing.attach(self._executor.path, runner.capacity)

    def run(
        self,
        requests: Sequence[Request],
        config: SchedulerConfig,
        block_copy_ns: int | None = None,
    ) -> Run:
        """Runs all requests from the same moment on, in an epoch of their own.

        `block_copy_ns`: what the scheduler is told, instead of what the runner has measured.
        """
        self._epoch += 1
        scheduler = Scheduler(config, Fcfs())
        capacity = self._runner.capacity
        if block_copy_ns is not None:
            capacity = msgspec.structs.replace(capacity, block_copy_ns=block_copy_ns)
        scheduler.attach(capacity, self._epoch)
        self._runner.begin(self._epoch)
        for request in requests:
            scheduler.add(request)
        run, live = Run(), len(requests)
        published: list[StepRecord] = []
        begin = time.monotonic()
        while live:
            while record := self._publish(scheduler):
                published.append(record)
            result = self._runner.wait(_STEP_TIMEOUT_S)
            assert result is not None, "a step takes longer than a minute"
            output = scheduler.commit(result)
            record = published[len(run.steps)]
            record.timing = result.timing
            run.steps.append(record)
            for seq_id, token in zip(output.seq_ids.tolist(), output.tokens.tolist(), strict=True):
                run.outputs.setdefault(seq_id, []).append(token)
            live -= len(output.endings)
        run.seconds = time.monotonic() - begin
        stats = scheduler.stats()
        run.preemptions, run.swaps = stats.preemptions, stats.swaps_out
        self._drain(len(published) - len(run.steps))
        return run

    def _publish(self, scheduler: Scheduler) -> StepRecord | None:
        planned = scheduler.plan(self._frames.plan_frame(scheduler.next_step))
        if planned is None:
            return None
        published_ns = time.monotonic_ns()
        frame = self._executor.plan_frame(planned.step)
        plan = frame.read(epoch=planned.epoch, step=planned.step)
        self._runner.submit(plan, time.monotonic_ns())
        return StepRecord(plan.rows, plan.tokens, published_ns, StepTiming())

    def _drain(self, steps: int) -> None:
        """Late steps of sequences that have ended."""
        for _ in range(steps):
            assert self._runner.wait(_STEP_TIMEOUT_S) is not None

    def close(self) -> None:
        self._runner.close()
        self._executor.unlink()
        self._directory.cleanup()
