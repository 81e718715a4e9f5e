"""Steps are committed as they end, and others get their turn in between."""

from typing import cast

import pytest

from scheduler_svc.executor_link import ExecutorLink
from scheduler_svc.meter import Meter
from scheduler_svc.requests import Requests
from scheduler_svc.steps import Steps
from svc_wire.frames import PlanFrame, StepResult
from svc_wire.ids import RowStatus
from tests.support.core import CAPACITY, request, result, scheduler
from tests.support.plans import plan_buffer


class InstantExecutor:
    """Each step has ended as soon as it is published, if it is not at work."""

    epoch = 1
    heard_at = 0.0
    newest = 0
    is_at_work = False

    def frame(self, _step: int) -> PlanFrame:
        return PlanFrame(plan_buffer(CAPACITY), CAPACITY, writable=True)

    def publish(self, step: int) -> None:
        self.newest = step

    def is_complete(self, step: int) -> bool:
        return step <= self.newest and not self.is_at_work

    def collect(self, step: int, rows: int) -> StepResult:
        return result(step, *[(RowStatus.OK, 5)] * rows)


class Nobody:
    """Requests that nobody waits for."""

    def begin(self, _first_rows: object) -> None:
        pass


def test_steps_that_end_at_once_keep_nobody_from_their_tokens() -> None:
    core = scheduler(depth=1)
    core.add(request(max_tokens=30))
    steps = Steps(
        core, cast("ExecutorLink", InstantExecutor()), cast("Requests", Nobody()), Meter()
    )
    steps.plan()
    outputs, events = steps.settle()
    assert events == []
    assert [output.indices.tolist() for output in outputs] == [[0], [1]]
    assert (steps.oldest, steps.newest) == (3, 4)
    outputs, _ = steps.settle()
    assert [output.indices.tolist() for output in outputs] == [[2], [3]]


def test_the_executor_computes_from_when_a_step_is_its_oldest_until_that_has_ended() -> None:
    core, executor = scheduler(depth=1), InstantExecutor()
    core.add(request(max_tokens=30))
    steps = Steps(core, cast("ExecutorLink", executor), cast("Requests", Nobody()), Meter())
    assert steps.computing_s(1e9) == 0
    executor.is_at_work = True
    steps.plan()
    assert steps.computing_s(steps.progress_at + 6) == pytest.approx(6)
    assert steps.computing_s(steps.progress_at - 1) == 0  # it came after the clock was read
    executor.is_at_work = False
    assert steps.computing_s(steps.progress_at + 7) == 0  # its result is there, and counts soon
