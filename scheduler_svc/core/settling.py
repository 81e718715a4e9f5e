"""Takes the result of a step in: tokens become known, and whoever stopped or is full ends.

A row counts only if its lane is still held by whom it was planned for; rows of an earlier tenancy
are late, and dropped.
"""

import numpy as np

from scheduler_svc.core.batch import Batch, InFlight
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.types import (
    Bools,
    Ending,
    Indices,
    ProtocolViolation,
    StepOutput,
)
from svc_wire.frames import StepResult
from svc_wire.ids import NO_TOKEN, FinishReason, RowStatus

# Plain numbers: numpy compares with a member of an enum at a multiple of the cost.
_STOPPED, _MASKED, _ERROR = (
    np.uint8(status) for status in (RowStatus.STOPPED, RowStatus.MASKED, RowStatus.ERROR)
)


def take_oldest(batch: Batch, result: StepResult) -> InFlight | None:
    """The step in flight that `result` is of; None if it is old news.

    Raises ProtocolViolation if it is of another step than the oldest, or of other rows.
    """
    next_step = batch.step - len(batch.in_flight) + 1
    if result.epoch != batch.epoch or result.step < next_step:
        return None
    if result.step > next_step or not batch.in_flight:
        raise ProtocolViolation(f"got the result of step {result.step}, not of {next_step}")
    flight = batch.in_flight.popleft()
    if len(result.row_status) != len(flight.lanes):
        raise ProtocolViolation(f"step {result.step} has {len(result.row_status)} rows")
    return flight


def settle(roster: Roster, batch: Batch, flight: InFlight, result: StepResult) -> StepOutput:
    """Raises ProtocolViolation for a result that cannot be true."""
    table, status = batch.table, result.row_status
    current = table.tenancy.take(flight.lanes) == flight.tenancy
    if np.count_nonzero(current & (status == _MASKED)):
        raise ProtocolViolation(f"step {flight.step}: the row of a live sequence was masked")
    taken = current & flight.samples & (status <= _STOPPED)
    lanes, tokens, position = flight.lanes[taken], result.row_token[taken], flight.stop[taken]
    if (tokens == NO_TOKEN).any():
        raise ProtocolViolation(f"step {flight.step}: a row that samples has no token")
    assert (table.known[lanes] == position).all()
    table.tokens.reshape(-1)[table.token_row[lanes] + position] = tokens
    table.known[lanes] += 1
    table.pending[lanes] -= 1
    if roster.suspects:
        roster.suspects.clear(table.occupant(lane) for lane in lanes.tolist())
    seq_ids, indices = table.seq_id[lanes], position - table.prompt_len[lanes]
    endings = _end_done(roster, batch, lanes, status[taken] == _STOPPED)
    if np.count_nonzero(failed := status == _ERROR):
        endings += _end_failed(roster, batch, flight.lanes[current & failed])
        for seq_id in flight.seq_ids[failed & ~current].tolist():
            batch.swap.drop(seq_id)  # it was pre-empted, and took along what the row has written
    return StepOutput(seq_ids, indices, tokens, tuple(endings))


def _end_done(roster: Roster, batch: Batch, lanes: Indices, stopped: Bools) -> list[Ending]:
    """Ends those of `lanes` that stopped or are full."""
    table = batch.table
    ended = stopped | (table.known.take(lanes) >= table.length_limit.take(lanes))
    reasons = (FinishReason.LENGTH, FinishReason.STOP_TOKEN)
    return [
        roster.end(table.occupant(lane), reasons[stop])
        for lane, stop in zip(lanes[ended].tolist(), stopped[ended].tolist(), strict=True)
    ]


def _end_failed(roster: Roster, batch: Batch, lanes: Indices) -> list[Ending]:
    """Ends those whose scores the model could not compute; nothing of their KV is found again."""
    endings = []
    for lane in lanes.tolist():
        batch.pool.forget(batch.table.block_table(lane))
        reason = "the model gave no finite scores for this sequence"
        endings.append(roster.end(batch.table.occupant(lane), FinishReason.ERROR, reason))
    return endings
