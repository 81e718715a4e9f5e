"""One epoch's steps between ring and runner: how many are taken, what they leave of KV memory."""

import random
from collections import deque
from pathlib import Path

import pytest

from executor_svc.session import VOID, Session
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.frames import BatchPlan, StepResult
from svc_wire.ring import DEPTH_MAX, ExecutorRing, SchedulerRing
from tests.support.plans import SMALL, RowSpec, fill_plan, random_result

BEFORE = (3, 41)
"""(epoch, step) whose state KV memory is in at the beginning."""


class Lazy:
    """A Runner that ends a step when it is told to."""

    capacity: Capacity = SMALL
    model = ModelInfo(name="", path="", eos_ids=(), dtype="", device="")

    def __init__(self) -> None:
        self.submitted: deque[BatchPlan] = deque()

    def begin(self, epoch: int) -> None: ...

    def submit(self, plan: BatchPlan, received_ns: int) -> None:
        self.submitted.append(plan)

    def poll(self) -> StepResult | None:
        plan = self.submitted.popleft()
        return random_result(random.Random(0), SMALL, 1, epoch=plan.epoch, step=plan.step)

    def wait(self, timeout_s: float) -> StepResult | None:
        return self.poll()

    def close(self) -> None: ...


class Epoch:
    """Epoch 7, between a scheduler and a lazy runner that are the test."""

    def __init__(self, folder: Path) -> None:
        ring = ExecutorRing.create(folder, SMALL)
        self._scheduler = SchedulerRing.attach(ring.path, SMALL)
        self.session = Session(b"peer", 7, Lazy(), ring)
        self._published = 0

    def publish(self, *, epoch: int = 7) -> None:
        self._published += 1
        frame = self._scheduler.plan_frame(self._published)
        fill_plan(frame, [RowSpec(0, 1, 2, 1)], random.Random(0), epoch=7, step=self._published)
        self._scheduler.publish_plan(epoch, self._published)

    def complete(self) -> None:
        result = self.session.collect(0.0)
        assert result is not None
        self.session.publish(result)


@pytest.fixture
def epoch(tmp_path: Path) -> Epoch:
    return Epoch(tmp_path)


def test_as_many_steps_are_taken_as_may_be_in_flight(epoch: Epoch) -> None:
    for _ in range(DEPTH_MAX + 1):
        epoch.publish()
        assert epoch.session.has_plan
        assert epoch.session.submit_published()
    assert epoch.session.in_flight == DEPTH_MAX + 1
    epoch.publish()
    assert not epoch.session.submit_published(), "its frame may not have been overwritten yet"
    epoch.complete()
    assert epoch.session.submit_published()


def test_a_plan_of_another_epoch_is_not_taken(epoch: Epoch) -> None:
    epoch.publish(epoch=6)
    assert not epoch.session.submit_published()


def test_without_a_step_kv_memory_is_as_it_was(epoch: Epoch) -> None:
    assert epoch.session.collect(0.0) is None
    assert epoch.session.kv_after(BEFORE) == BEFORE


def test_kv_memory_is_in_the_state_of_the_last_step(epoch: Epoch) -> None:
    for step in (1, 2):
        epoch.publish()
        epoch.session.submit_published()
        epoch.complete()
        assert epoch.session.kv_after(BEFORE) == (7, step)


@pytest.mark.parametrize("completed", [0, 1])
def test_steps_that_are_cut_off_leave_nothing_known(epoch: Epoch, completed: int) -> None:
    for _ in range(completed):
        epoch.publish()
        epoch.session.submit_published()
        epoch.complete()
    epoch.publish()
    epoch.session.submit_published()
    assert epoch.session.kv_after(BEFORE) == VOID
