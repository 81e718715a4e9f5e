"""Policies in force: overtaking has a bound, faults have a consequence, swaps keep everybody."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from scheduler_svc.core import Rejection, Scheduler
from scheduler_svc.core.policies import (
    Fair,
    Fcfs,
    GroupView,
    Key,
    LoadView,
    Policy,
    Priority,
    RequestView,
    RunningView,
    Sjf,
)
from scheduler_svc.core.types import PolicyFault
from svc_wire.ids import NO_TOKEN, RejectReason, RowStatus, SeqId
from tests.support.core import CAPACITY, plan, request, result, scheduler


class Pliable(Policy):
    """First come, first served, except where a test replaces an answer."""

    name: ClassVar[str] = "pliable"

    def __init__(self, **answers: Callable[..., Any]) -> None:
        super().__init__()
        self._answers = answers

    def _answer(self, what: str, usual: object, *arguments: object) -> Any:
        return self._answers[what](*arguments) if what in self._answers else usual

    def key(self, request: RequestView) -> Key:
        key: Key = self._answer("key", (request.arrival,), request)
        return key

    def group(self, request: RequestView) -> str:
        group: str = self._answer("group", "", request)
        return group

    def rank(self, group: GroupView) -> Key:
        rank: Key = self._answer("rank", (), group)
        return rank

    def refuse(self, request: RequestView, load: LoadView) -> str | None:
        reason: str | None = self._answer("refuse", None, request, load)
        return reason

    def piece(self, request: RequestView, wanted: int, room: int) -> int:
        piece: int = self._answer("piece", min(wanted, room), request, wanted, room)
        return piece

    def victim(self, running: Sequence[RunningView]) -> int:
        victim: int = self._answer("victim", len(running) - 1, running)
        return victim


def fail(*_: object) -> Any:
    raise RuntimeError("oh")


def run_one(core: Scheduler) -> tuple[SeqId, ...]:
    """Plans a step and commits token 5 for each row; returns whose first rows it had."""
    planned = plan(core)
    assert planned
    core.commit(result(planned.step, *[(RowStatus.OK, 5)] * planned.rows))
    core.check()
    return planned.first_rows


def test_whoever_was_overtaken_so_often_is_not_once_more() -> None:
    core = scheduler(Sjf(), running_max=1, overtakes_max=3)
    long = core.add(request(max_tokens=9))
    short = [core.add(request(max_tokens=1)) for _ in range(5)]
    served = [run_one(core)[0] for _ in range(4)]
    assert served == [*short[:3], long]
    assert core.stats().reliefs == 1


def test_whoever_came_before_is_not_overtaken() -> None:
    core = scheduler(running_max=1, overtakes_max=1)
    seq_ids = [core.add(request(max_tokens=1)) for _ in range(5)]
    assert [run_one(core)[0] for _ in range(5)] == seq_ids
    assert core.stats().reliefs == 0


@pytest.mark.parametrize(
    ("what", "answers"),
    [
        ("key", [(), (1.0,), (float("nan"), 1.0), [1], None]),
        ("group", [None, 5]),
        ("refuse", ["", 5]),
    ],
)
def test_an_answer_at_the_door_that_cannot_be_used_puts_fcfs_in_force(
    what: str, answers: list[object]
) -> None:
    for answer in answers:
        core = scheduler(Pliable(**{what: lambda *_, answer=answer: answer}))
        core.add(request())
        core.add(request())
        assert core.policy.name == "fcfs"
        assert core.policy_fault.startswith(f"pliable: {what} answered")
        assert core.stats().policy_faults == 1
        assert len(run_one(core)) == 2


@pytest.mark.parametrize("what", ["key", "group", "refuse"])
def test_a_policy_that_raises_at_the_door_is_replaced(what: str) -> None:
    core = scheduler(Pliable(**{what: fail}))
    core.add(request())
    assert core.policy_fault == f"pliable: {what} raised RuntimeError('oh')"
    assert core.policy.name == "fcfs"


def test_a_policy_does_not_end_the_process() -> None:
    core = scheduler(Pliable(key=lambda _: sys.exit(3)))
    core.add(request())
    assert core.policy_fault == "pliable: key raised SystemExit(3)"


def test_a_rank_may_be_larger_than_any_float() -> None:
    core = scheduler(Pliable(rank=lambda _: (10**400,), group=lambda view: str(view.arrival)))
    for _ in range(3):
        core.add(request())
    assert len(run_one(core)) == 3
    assert core.policy_fault == ""


@pytest.mark.parametrize(
    ("what", "answers"),
    [
        ("rank", [(float("nan"),), ("a",), None]),
        ("piece", [0, -1, 99, 1.5, None]),
    ],
)
def test_an_answer_in_the_middle_of_a_plan_that_cannot_be_used_changes_nothing_else(
    what: str, answers: list[object]
) -> None:
    for answer in answers:
        core = scheduler(
            Pliable(
                **{what: lambda *_, answer=answer: answer}, group=lambda view: str(view.arrival % 2)
            )
        )
        for _ in range(3):
            core.add(request(prompt_len=5))
        assert len(run_one(core)) == 3
        run_one(core)
        assert core.policy.name == "fcfs"
        assert f"{what} answered" in core.policy_fault


@pytest.mark.parametrize("answer", [-1, 2, 1.0, None])
def test_a_victim_that_there_is_not_is_the_last_one_in_rank(answer: object) -> None:
    core = scheduler(Pliable(victim=lambda _: answer))
    _fill_memory(core)
    assert core.stats().preemptions == 1
    core.add(request())
    assert core.policy.name == "fcfs"


def test_a_policy_may_pick_the_victim() -> None:
    core = scheduler(Pliable(victim=lambda running: 0))
    first, _ = _fill_memory(core)
    assert core.stats().preemptions == 1
    assert core._roster.sequences[first].preemptions == 1
    assert core.policy.name == "pliable"


def _fill_memory(core: Scheduler) -> list[SeqId]:
    """Two sequences that together need one block more than there are, in the last plan."""
    seq_ids = [core.add(request(prompt_len=28, max_tokens=12)) for _ in range(2)]
    while core.stats().preemptions == 0:
        planned = plan(core)
        assert planned
        if core.stats().preemptions == 0:
            core.commit(result(planned.step, *[(RowStatus.OK, 5)] * planned.rows))
    core.check()
    return seq_ids


def test_whoever_was_cleared_and_preempted_is_no_suspect_again_while_others_are() -> None:
    """With rows of suspects in flight, the cause is among those."""
    core = scheduler(Pliable(victim=lambda running: 0), depth=1, step_tokens_max=2, losses_max=3)
    cleared = core.add(request(prompt_len=4, max_tokens=36))
    suspect = core.add(request(prompt_len=39, max_tokens=1))
    run_until(core, lambda: core.stats().running == 2)
    core.executor_lost()
    core.attach(CAPACITY, 2)
    # The one decodes and needs more and more memory, the other reads its prompt all the while.
    run_until(core, lambda: core.stats().preemptions > 0)
    core.executor_lost()
    core.check()
    assert core._roster.sequences[cleared] not in core._roster.suspects
    assert core._roster.sequences[suspect] in core._roster.suspects


def run_until(core: Scheduler, is_so: Callable[[], bool]) -> None:
    """Plans, and commits results with token 5 where one is sampled, until `is_so`."""
    batch = core._roster.batch
    assert batch
    while not is_so():
        if plan(core) is None:
            flight = batch.in_flight[0]
            sampled = flight.samples.tolist()
            rows = [(RowStatus.OK, 5 if samples else NO_TOKEN) for samples in sampled]
            core.commit(result(flight.step, *rows, epoch=batch.epoch))


def test_a_policy_may_refuse() -> None:
    core = scheduler(Pliable(refuse=lambda *_: "not today"))
    with pytest.raises(Rejection) as caught:
        core.add(request())
    assert (caught.value.reason, caught.value.message) == (RejectReason.POLICY, "not today")
    assert core.add(request(was_accepted=True)) == 1
    assert core.stats().waiting == 1


def test_a_policy_may_cut_prompts_short() -> None:
    core = scheduler(Pliable(piece=lambda view, wanted, room: 2))
    core.add(request(prompt_len=6, max_tokens=1))
    for _ in range(2):
        planned = plan(core)
        assert planned
        core.commit(result(planned.step, (RowStatus.OK, NO_TOKEN)))
    assert len(core.commit(result(3, (RowStatus.OK, 5))).tokens if plan(core) else []) == 1


def test_another_policy_orders_everybody_anew() -> None:
    core = scheduler(running_max=1)
    core.add(request(max_tokens=9))
    run_one(core)
    low = core.add(request(max_tokens=1))
    high = core.add(request(max_tokens=1, priority=5))
    core.set_policy(Priority())
    core.check()
    assert core.policy.name == "priority"
    assert run_one(core) == (high,)
    core.set_policy(Fcfs())
    run_one(core)
    assert core._roster.order.waiting.head is not None
    assert core._roster.order.waiting.head.seq_id == low
    assert core.policy_fault == ""


def test_a_policy_that_cannot_order_them_is_not_put_in_force() -> None:
    core = scheduler()
    core.add(request())
    with pytest.raises(PolicyFault, match="key raised"):
        core.set_policy(Pliable(key=fail))
    core.check()
    assert core.policy.name == "fcfs"
    assert core.stats().policy_faults == 0


def test_whoever_was_put_before_everybody_stays_there_under_another_policy() -> None:
    core = scheduler(Sjf(), running_max=1, overtakes_max=1)
    long = core.add(request(max_tokens=9))
    core.add(request(max_tokens=1))
    run_one(core)
    assert core.stats().reliefs == 1
    core.add(request(max_tokens=1, priority=9))
    core.set_policy(Priority())
    assert run_one(core) == (long,)


def test_tenants_get_even_shares_of_places() -> None:
    core = scheduler(Fair(), running_max=1)
    for _ in range(6):
        core.add(request(max_tokens=1, tenant="many"))
    for _ in range(3):
        core.add(request(max_tokens=1, tenant="few"))
    order = [run_one(core)[0] for _ in range(6)]
    assert sum(seq_id > 6 for seq_id in order) == 3


def test_the_cache_is_looked_up_for_ranks() -> None:
    seen: list[int] = []

    def rank(group: GroupView) -> Key:
        seen.append(group.count_cached())
        return (-seen[-1],)

    policy = Pliable(group=lambda view: str(view.arrival % 2), rank=rank)
    core = scheduler(policy, running_max=1)
    core.add(request(prompt_len=9, max_tokens=1))
    run_one(core)
    core.add(request(prompt_len=1, max_tokens=1))
    core.add(request(prompt_len=9, max_tokens=1))
    assert run_one(core) == (3,)
    assert sorted(seen) == [0, 8]


def test_without_the_prefix_cache_nothing_is_cached_for_ranks() -> None:
    seen: list[int] = []

    def rank(group: GroupView) -> Key:
        seen.append(group.count_cached())
        return ()

    policy = Pliable(group=lambda view: str(view.arrival % 2), rank=rank)
    core = scheduler(policy, running_max=1, prefix_cache=False)
    for _ in range(3):
        core.add(request(prompt_len=9, max_tokens=1))
    run_one(core)
    run_one(core)
    assert seen == [0, 0, 0, 0]


def test_the_load_is_told_as_it_is() -> None:
    loads: list[LoadView] = []

    def refuse(_: RequestView, load: LoadView) -> None:
        loads.append(load)

    core = scheduler(Pliable(refuse=refuse), running_max=3)
    core.add(request(), now_s=7.0)
    planned = plan(core)
    assert planned
    core.commit(result(1, (RowStatus.OK, 5)))
    planned = plan(core)
    core.commit(result(2, (RowStatus.OK, 5), took_ms=20))
    core.add(request(), now_s=8.0)
    core.executor_lost()
    core.add(request(), now_s=9.0)
    assert [(load.now_s, load.waiting, load.running, load.running_max) for load in loads] == [
        (7.0, 0, 0, 3),
        (8.0, 0, 1, 3),
        (9.0, 2, 0, 3),
    ]
    assert [load.step_s for load in loads] == [0.0, 0.02, 0.02]
    core.attach(CAPACITY, 2)
    core.add(request())
    assert loads[-1].step_s == 0.0  # another executor has another pace
