"""The steps between the core and the executor: published, in flight, settled."""

import time
from collections import deque
from typing import NamedTuple

from scheduler_svc.core import PlannedStep, ProtocolViolation, Scheduler, StepOutput
from scheduler_svc.executor_link import Event, ExecutorLink
from scheduler_svc.meter import Meter
from scheduler_svc.requests import Requests
from svc_wire.errors import FrameError


class _Flight(NamedTuple):
    planned: PlannedStep
    chained: bool
    """Planned while the step before was in flight, or at once when it was committed."""


class Steps:
    """Used by one thread."""

    def __init__(
        self, core: Scheduler, executor: ExecutorLink, requests: Requests, meter: Meter
    ) -> None:
        self._core = core
        self._executor = executor
        self._requests = requests
        self._meter = meter
        self._in_flight: deque[_Flight] = deque()
        self.progress_at = 0.0
        """When the oldest step in flight became the oldest."""

    @property
    def oldest(self) -> int:
        """The number of the oldest step in flight; 0: none is."""
        return self._in_flight[0].planned.step if self._in_flight else 0

    @property
    def newest(self) -> int:
        """The number of the newest step in flight; 0: none is."""
        return self._in_flight[-1].planned.step if self._in_flight else 0

    def computing_s(self, now_s: float) -> float:
        """For how long the executor has been at the oldest step; 0: that has ended, or none is."""
        if not self._in_flight or self._executor.is_complete(self.oldest):
            return 0.0
        return max(0.0, now_s - self.progress_at)  # it may be younger than the look

    def plan(self, *, chained: bool = False) -> None:
        """Publishes as many steps as the depth allows; the first may follow one just committed."""
        while self._executor.epoch is not None:
            step = self._core.next_step
            planned = self._core.plan(self._executor.frame(step))
            if planned is None:
                return
            self._executor.publish(planned.step)
            if not self._in_flight:
                self.progress_at = time.monotonic()
            self._in_flight.append(_Flight(planned, chained or bool(self._in_flight)))
            self._requests.begin(planned.first_rows)

    def settle(self, *, plans: bool = True) -> tuple[list[StepOutput], list[Event]]:
        """Commits what is complete; `plans` anew after each commit.

        No more than is in flight now: where steps end as fast as they are planned there would be no
        end to it, and nobody would get tokens meanwhile.

        Also returns what it means for the executor if a result cannot be used.
        """
        outputs: list[StepOutput] = []
        for _ in range(len(self._in_flight)):
            if not self._executor.is_complete(self.oldest):
                break
            planned, chained = self._in_flight.popleft()
            try:
                result = self._executor.collect(planned.step, planned.rows)
                outputs.append(self._core.commit(result))
            except (FrameError, ProtocolViolation) as error:
                return outputs, self._executor.begin_anew(f"unusable result: {error}")
            self._meter.add(result.timing, time.monotonic_ns(), chained=chained)
            self._executor.heard_at = self.progress_at = time.monotonic()
            if plans:
                self.plan(chained=True)
        return outputs, []

    def forget(self) -> None:
        """The epoch is over: their results will not come."""
        self._in_flight.clear()
