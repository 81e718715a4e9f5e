"""Takes the result of a step in: tokens become known, and whoever stopped or is full ends.

A token counts only if its lane is still held by whom it was planned for; those of an earlier
tenancy are late, and dropped.
"""

import numpy as np

from scheduler_svc.core.batch import Batch, InFlight
from scheduler_svc.core.lanes import Bytes, LaneTable
from scheduler_svc.core.logprobs import pick
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.types import Bools, Ending, Indices, ProtocolViolation, StepOutput
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
    if len(result.row_status) != len(flight.stop):
        raise ProtocolViolation(f"step {result.step} has {len(result.row_status)} rows")
    return flight


def settle(roster: Roster, batch: Batch, flight: InFlight, result: StepResult) -> StepOutput:
    """Raises ProtocolViolation for a result that cannot be true."""
    table, rows, status = batch.table, flight.rows, result.row_status
    taken = _taken(table, flight, status)
    lanes, tokens, position = rows.lanes[taken], result.row_token[taken], flight.stop[taken]
    if np.count_nonzero(tokens == NO_TOKEN):
        raise ProtocolViolation(f"step {flight.step}: a row that samples has no token")
    logprobs = pick(rows.logprobs[taken], tokens, taken, result.logprobs)
    assert (table.known.take(lanes) == position).all()
    table.tokens.reshape(-1)[rows.token_row[taken] + position] = tokens
    known = position + 1
    table.known[lanes] = known
    table.pending[lanes] = table.pending.take(lanes) - 1
    if roster.suspects:
        roster.suspects.clear(table.occupant(lane) for lane in lanes.tolist())
    stopped = status[taken] == _STOPPED
    ended = stopped | (known >= rows.length_limit[taken])
    endings = _end_done(roster, table, lanes[ended], stopped[ended])
    endings += _end_failed(roster, batch, flight, (status == _ERROR).nonzero()[0])
    indices = position - rows.prompt_len[taken]
    return StepOutput(rows.seq_id[taken], indices, tokens, tuple(endings), logprobs)


def _taken(table: LaneTable, flight: InFlight, status: Bytes) -> slice | Indices:
    """The rows whose tokens count."""
    good = flight.samples & (status <= _STOPPED)
    if table.changes == flight.changes and np.count_nonzero(good) == len(good):
        return slice(None)  # all, as in most steps; it copies nothing
    current = table.tenancy.take(flight.rows.lanes) == flight.rows.tenancy
    if np.count_nonzero(current & (status == _MASKED)):
        raise ProtocolViolation(f"step {flight.step}: the row of a live sequence was masked")
    chosen: Indices = (good & current).nonzero()[0]
    return chosen


def _end_done(roster: Roster, table: LaneTable, lanes: Indices, stopped: Bools) -> list[Ending]:
    """Ends those that stopped or are full."""
    reasons = (FinishReason.LENGTH, FinishReason.STOP_TOKEN)
    return [
        roster.end(table.occupant(lane), reasons[stop])
        for lane, stop in zip(lanes.tolist(), stopped.tolist(), strict=True)
    ]


def _end_failed(roster: Roster, batch: Batch, flight: InFlight, failed: Indices) -> list[Ending]:
    """Ends those whose scores the model could not compute; nothing of their KV is used again.

    Unlike a token, a failure counts whoever has the lane by now. What the row has written may be
    found, or swapped out, when its sequence waits, runs in another lane, or has ended.
    """
    endings = []
    for seq_id in flight.rows.seq_id[failed].tolist():
        sequence = roster.sequences.get(seq_id)
        batch.forget(sequence or batch.departed(flight, seq_id))
        if sequence:
            reason = "the model gave no finite scores for this sequence"
            endings.append(roster.end(sequence, FinishReason.ERROR, reason))
    return endings
