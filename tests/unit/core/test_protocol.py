"""What the core says to events that come at the wrong time, and to results that cannot be true."""

import numpy as np
import pytest

from scheduler_svc.core import ProtocolViolation, Rejection, Scheduler, SchedulerConfig
from scheduler_svc.core.batch import Batch, InFlight
from scheduler_svc.core.policies import Fcfs
from svc_wire.ids import NO_TOKEN, FinishReason, RejectReason, RowStatus
from tests.support.core import CAPACITY, plan, request, result, scheduler

OK, STOPPED, MASKED = RowStatus.OK, RowStatus.STOPPED, RowStatus.MASKED


def test_nobody_is_accepted_before_there_was_an_executor() -> None:
    core = Scheduler(SchedulerConfig(), Fcfs())
    with pytest.raises(Rejection) as caught:
        core.add(request())
    assert caught.value.reason is RejectReason.NO_EXECUTOR


def test_without_an_executor_nothing_is_planned_and_requests_wait() -> None:
    core = scheduler()
    core.executor_lost()
    seq_id = core.add(request())
    assert core.epoch is None
    assert plan(core) is None
    core.attach(CAPACITY, 2)
    planned = plan(core)
    assert planned
    assert planned.first_rows == (seq_id,)


def test_two_executors_at_once_are_a_mistake() -> None:
    with pytest.raises(AssertionError):
        scheduler().attach(CAPACITY, 2)


def test_a_loss_without_an_executor_is_nothing() -> None:
    core = scheduler()
    assert core.executor_lost() == []
    assert core.executor_lost() == []


def test_an_unknown_sequence_is_not_aborted() -> None:
    assert scheduler().abort(scheduler().add(request()), FinishReason.ABORT) is None


def test_first_rows_are_told_once() -> None:
    core = scheduler(step_tokens_max=2)
    seq_id = core.add(request(prompt_len=4))
    planned = plan(core)
    assert planned
    assert planned.first_rows == (seq_id,)
    core.commit(result(1, (OK, NO_TOKEN)))
    planned = plan(core)
    assert planned
    assert planned.first_rows == ()


def test_a_result_that_nobody_waits_for_is_a_violation() -> None:
    core = scheduler()
    with pytest.raises(ProtocolViolation, match="step 1"):
        core.commit(result(1, (OK, 5)))
    core.add(request())
    plan(core)
    with pytest.raises(ProtocolViolation, match="got the result of step 2, not of 1"):
        core.commit(result(2, (OK, 5)))


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_result_of_another_epoch_is_nothing(epoch: int) -> None:
    core = scheduler()
    core.add(request())
    plan(core)
    output = core.commit(result(1, (OK, 5), epoch=epoch))
    assert len(output.tokens) == len(output.endings) == 0
    assert core.stats().in_flight == 1


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(OK, 5), (OK, 5)], "2 rows"),
        ([(MASKED, NO_TOKEN)], "was masked"),
        ([(OK, NO_TOKEN)], "no token"),
        ([(STOPPED, NO_TOKEN)], "no token"),
    ],
)
def test_a_result_that_cannot_be_true_is_a_violation(
    rows: list[tuple[RowStatus, int]], words: str
) -> None:
    core = scheduler()
    core.add(request())
    plan(core)
    with pytest.raises(ProtocolViolation, match=words):
        core.commit(result(1, *rows))


def test_after_a_violation_the_executor_is_given_up_and_nothing_is_lost() -> None:
    core = scheduler()
    core.add(request())
    plan(core)
    with pytest.raises(ProtocolViolation):
        core.commit(result(1, (MASKED, NO_TOKEN)))
    core.executor_lost()
    core.check()
    assert core.stats().waiting == 1


def test_a_failed_row_ends_its_sequence_and_its_blocks_are_not_found_again() -> None:
    core = scheduler()
    bad = core.add(request(prompt_len=9))
    plan(core)
    output = core.commit(result(1, (RowStatus.ERROR, NO_TOKEN)))
    assert [(e.seq_id, e.reason, e.output_tokens) for e in output.endings] == [
        (bad, FinishReason.ERROR, 0)
    ]
    assert "finite" in output.endings[0].message
    core.add(request(prompt_len=9))
    plan(core)
    assert core.stats().cache_hit_tokens == 0


def test_a_full_queue_is_for_newcomers_only() -> None:
    core = scheduler(waiting_max=1)
    core.add(request())
    with pytest.raises(Rejection) as caught:
        core.add(request())
    assert caught.value.reason is RejectReason.QUEUE_FULL
    assert core.add(request(was_accepted=True))


def test_usage_is_counted_by_tenant() -> None:
    core = scheduler()
    for _ in range(2):
        core.add(request(prompt_len=5, max_tokens=1, tenant="a"))
        planned = plan(core)
        assert planned
        core.commit(result(planned.step, (OK, 5)))
    usage = core.tenants()["a"]
    assert (usage.requests, usage.prompt_tokens, usage.cached_tokens) == (2, 10, 4)
    assert (usage.output_tokens, usage.preemptions) == (2, 0)


def test_a_row_of_nobody_is_a_mistake() -> None:
    batch = Batch(1, CAPACITY, SchedulerConfig())
    flight = InFlight(
        step=1, rows=batch.rows, changes=0, samples=np.zeros(0, np.bool_),
        stop=np.zeros(0, np.int32), tokens=0,
    )  # fmt: skip
    with pytest.raises(AssertionError, match="of nobody"):
        batch.departed(flight, 1)
