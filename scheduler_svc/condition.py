"""What the front ends know of this process: what it serves, whether it can, how busy it is."""

import time

import structlog

from scheduler_svc.core import Scheduler
from scheduler_svc.executor_link import ExecutorLink, Ready
from scheduler_svc.frontends import Frontends
from scheduler_svc.meter import Meter
from scheduler_svc.steps import Steps
from svc_wire.frontend_link import PROTOCOL_VERSION, Attached, Status

log = structlog.get_logger(service="scheduler")


class Condition:
    """Derives it anew whenever somebody asks; times are seconds, monotonic."""

    def __init__(
        self,
        core: Scheduler,
        executor: ExecutorLink,
        steps: Steps,
        meter: Meter,
        stall_timeout_s: float,
    ) -> None:
        self._core = core
        self._executor = executor
        self._steps = steps
        self._meter = meter
        self._stall_timeout_s = stall_timeout_s
        self.is_draining = False
        self.attached: Attached | None = None
        """What is served, as of the last executor; None: there was none yet."""
        self._told_ready: bool | None = None

    def set_served(self, ready: Ready) -> bool:
        """An executor is ready; whether something else is served from now on than before."""
        before, capacity = self.attached, ready.capacity
        self.attached = Attached(
            PROTOCOL_VERSION, ready.model, capacity.vocab_size, capacity.sequence_len_max
        )
        return before is not None and before != self.attached

    def status(self, now: float) -> Status:
        stats, reason = self._core.stats(), self._why_not_ready(now)
        return Status(
            ready=not reason,
            reason=reason,
            policy=self._core.policy_name,
            depth=self._core.config.depth,
            waiting=stats.waiting,
            running=stats.running,
            blocks_total=stats.blocks_total,
            blocks_free=stats.blocks_free,
            steps=stats.steps,
            tokens=stats.tokens,
            preemptions=stats.preemptions,
            swaps_out=stats.swaps_out,
            swaps_in=stats.swaps_in,
            policy_faults=stats.policy_faults,
            epochs_lost=self._executor.epochs_lost,
            pace=self._meter.pace(time.monotonic_ns()),
        )

    def _why_not_ready(self, now: float) -> str:
        """Empty if requests are served."""
        if self.is_draining:
            return "the scheduler is shutting down"
        if self._executor.epoch is None:
            return "no executor is ready"
        silence_s = now - self._executor.heard_at
        if silence_s > self._stall_timeout_s:
            return f"the executor has been silent for {silence_s:.1f} s"
        # It may be heard and yet be stuck: only a step that ends is progress.
        step_s = now - self._steps.progress_at
        if self._steps.oldest and step_s > self._stall_timeout_s:
            return f"the executor has not ended step {self._steps.oldest} for {step_s:.1f} s"
        return ""

    def tell_if_changed(self, now: float, frontends: Frontends) -> None:
        """Tells everybody when it becomes ready or ceases to be."""
        ready = not self._why_not_ready(now)
        if ready != self._told_ready:
            self._told_ready = ready
            status = self.status(now)
            log.info("ready" if ready else "not ready", reason=status.reason)
            frontends.broadcast(status)
