"""What the scheduler promises beyond being right: order, fairness, and no waste.

Wrong answers show in the ledger, broken books in `Scheduler.check`. A scheduler that starves
somebody or idles beside work does neither; these are looked up in its state around each plan.
"""

from dataclasses import dataclass
from functools import partial

from scheduler_svc.core import PlannedStep, Scheduler
from scheduler_svc.core.batch import Batch
from scheduler_svc.core.policies import Priority
from scheduler_svc.core.sequence import Sequence
from svc_wire.frames import PlanFrame


@dataclass(frozen=True, slots=True)
class Before:
    """What must be remembered from before a plan."""

    first: Sequence | None
    """The running sequence of the highest rank, unless a waiting one goes before it."""
    preemptions: int
    is_faulty: bool
    """The policy has given an answer that cannot be used."""
    idle: bool
    """No step is in flight, and there is something to compute and somebody to do it."""


def look(core: Scheduler, *, in_order: bool) -> Before:
    """`in_order`: nothing has happened after which other rules go before the policy's."""
    batch, first = core._roster.batch, None
    if batch and batch.running and in_order and _is_ranked(core):
        first, head = min(batch.running, key=partial(_rank, core)), core._roster.order.waiting.head
        if head and _rank(core, head) < _rank(core, first):
            first = None
    idle = batch is not None and not batch.in_flight and bool(core._roster.sequences)
    return Before(first, core._roster.preemptions, bool(core._roster.order._guard.fault), idle)


def check_nothing(before: Before) -> None:
    """`plan` found nothing to do."""
    assert not before.idle, "idle beside work"
    _check_first(before)


def check_plan(
    core: Scheduler, before: Before, planned: PlannedStep, frame: PlanFrame, *, in_order: bool
) -> None:
    """`plan` has filled `frame`. `in_order` as in `look`."""
    roster, tokens = core._roster, int(frame.query_indptr[planned.rows])
    batch, order = roster.batch, roster.order
    assert batch is not None
    _check_first(before)
    assert not before.is_faulty or core.policy.name == "fcfs", "a faulty policy stays in force"
    assert tokens <= batch.step_tokens_max, "over the budget"
    _check_rows(batch, frame.row_lane[: planned.rows].tolist())
    cuts = core.config.itl_target_ms or core.policy.name == "crazy" or order.faults
    cuts = cuts or frame.sections["header"]["copies_in"]  # they take their share of the budget
    if tokens < batch.step_tokens_max and roster.preemptions == before.preemptions and not cuts:
        _check_nobody_could_use_more(core, batch)
    if in_order and core.policy.name == "fcfs" and order.waiting.head:
        last = max(sequence.seq_id for sequence in batch.running)
        first = min(sequence.seq_id for sequence in order.waiting)
        assert last < first, "somebody was overtaken"


def _is_ranked(core: Scheduler) -> bool:
    """The policy is one whose order is known here."""
    return core.policy.name == "fcfs" or (
        isinstance(core.policy, Priority) and not core.policy._ageing_s
    )


def _rank(core: Scheduler, sequence: Sequence) -> tuple[int, int]:
    """Its rank by the words of the policy, not by the key that the core keeps."""
    urgency = sequence.request.priority if core.policy.name == "priority" else 0
    return -urgency, sequence.seq_id


def _check_first(before: Before) -> None:
    assert before.first is None or before.first.lane is not None, "the first in rank lost its place"


def _check_rows(batch: Batch, planned_lanes: list[int]) -> None:
    """Every running sequence moves, and none beyond its end."""
    table = batch.table
    needs = batch.needed(table.moment(batch.lanes))
    for lane, needed in zip(batch.lanes.tolist(), needs.tolist(), strict=True):
        assert needed <= 0 or lane in planned_lanes, "a running sequence got no row"
        assert table.planned[lane] < table.length_limit[lane], "a row for what nobody reads"


def _check_nobody_could_use_more(core: Scheduler, batch: Batch) -> None:
    """Budget was left, so all that is known of everybody is planned, and nobody else fits."""
    table, lanes = batch.table, batch.lanes
    for known, limit, planned in zip(
        table.known[lanes].tolist(),
        table.length_limit[lanes].tolist(),
        table.planned[lanes].tolist(),
        strict=True,
    ):
        assert planned >= min(known, limit - 1), "budget left beside a prompt"
    head = core._roster.order.waiting.head
    if head and not core._roster.suspects and batch.has_place:
        cost = -(-len(head.tokens) // table.block_size) + len(batch.running)
        assert cost > batch.pool.available, "budget, place and memory left beside a waiting one"
