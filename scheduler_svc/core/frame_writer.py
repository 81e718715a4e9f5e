"""Writes the rows of a step straight into its frame: numpy arrays in, shared memory out.

`take` with `out` gathers without an array in between, and with flat indices it is several times as
fast as indexing by two arrays; mode "clip" is what makes `out` unbuffered, nothing is ever clipped.
"""

import numpy as np

from scheduler_svc.core.lanes import LaneTable
from scheduler_svc.core.swap import NO_COPIES, Copies
from scheduler_svc.core.types import Indices, Int32s
from svc_wire.frames import PlanFrame
from svc_wire.ids import CARRIED_TOKEN, RowFlag

_SAMPLES, _CARRY, _BAN_STOP = (
    np.int32(flag) for flag in (RowFlag.SAMPLES, RowFlag.CARRY, RowFlag.BAN_STOP)
)


def write_plan(
    frame: PlanFrame,
    table: LaneTable,
    lanes: Indices,
    stop: Int32s,
    copies: Copies,
    *,
    epoch: int,
    step: int,
) -> Int32s:
    """Fills and seals `frame`: row r computes positions [planned:stop[r]) of lanes[r].

    Rows of one token come first; a lane stands at most once. Returns the rows' flags [R]. Changes
    nothing in `table`.
    """
    rows = len(lanes)
    start = frame.row_start[:rows]
    table.planned.take(lanes, out=start, mode="clip")
    known = table.known.take(lanes)
    flags: Int32s = (
        (stop == known + table.pending.take(lanes)) * _SAMPLES
        | (stop > known) * _CARRY
        | (stop < table.ban_until.take(lanes)) * _BAN_STOP
        | table.standing_flags.take(lanes)
    )
    frame.row_lane[:rows] = lanes
    frame.row_stop[:rows] = stop
    frame.row_flags[:rows] = flags
    table.prompt_len.take(lanes, out=frame.prompt_len[:rows], mode="clip")
    _write_sampling(frame, table, lanes, rows)
    tokens = _write_tokens(frame, table, lanes, start, stop, flags)
    blocks = _write_tables(frame, table, lanes, stop)
    copies_out, copies_in = copies
    if copies is not NO_COPIES:
        frame.write_copies(blocks, copies_out, copies_in)
    frame.seal(
        epoch=epoch,
        step=step,
        rows=rows,
        tokens=tokens,
        blocks=blocks,
        samples=int(np.count_nonzero(flags & _SAMPLES)),
        copies_out=len(copies_out),
        copies_in=len(copies_in),
    )
    return flags


def _write_sampling(frame: PlanFrame, table: LaneTable, lanes: Indices, rows: int) -> None:
    """Writes what each row wants of its tokens."""
    table.temperature.take(lanes, out=frame.temperature[:rows], mode="clip")
    table.top_k.take(lanes, out=frame.top_k[:rows], mode="clip")
    table.top_p.take(lanes, out=frame.top_p[:rows], mode="clip")
    table.min_p.take(lanes, out=frame.min_p[:rows], mode="clip")
    table.repetition_penalty.take(lanes, out=frame.repetition_penalty[:rows], mode="clip")
    table.presence_penalty.take(lanes, out=frame.presence_penalty[:rows], mode="clip")
    table.frequency_penalty.take(lanes, out=frame.frequency_penalty[:rows], mode="clip")
    table.seed.take(lanes, out=frame.seed[:rows], mode="clip")
    table.stop_ids.take(lanes, axis=0, out=frame.stop_ids[:rows], mode="clip")
    table.logprobs.take(lanes, out=frame.logprobs[:rows], mode="clip")


def _write_tokens(
    frame: PlanFrame,
    table: LaneTable,
    lanes: Indices,
    start: Int32s,
    stop: Int32s,
    flags: Int32s,
) -> int:
    """Writes query_indptr and the per-token arrays; returns the number of tokens."""
    rows, size = len(lanes), table.block_size
    lengths = stop - start
    frame.query_indptr[0] = 0
    np.add.accumulate(lengths, out=frame.query_indptr[1 : rows + 1])
    tokens = int(frame.query_indptr[rows])
    # All rows of one token at once; they come first.
    singles = int(np.count_nonzero(lengths == 1))
    lane, position = lanes[:singles], start[:singles]
    block, offset = np.divmod(position, np.int32(size))
    frame.token_ids[:singles] = CARRIED_TOKEN
    told = np.flatnonzero(flags[:singles] & _CARRY == 0)
    frame.token_ids[told] = table.tokens.take(table.token_row[lane[told]] + position[told])
    frame.positions[:singles] = position
    frame.kv_slots[:singles] = table.table.take(table.table_row[lane] + block) * size + offset
    # Pieces of prompts: few rows, each a slice.
    for row in range(singles, rows):
        begin, end = int(frame.query_indptr[row]), int(frame.query_indptr[row + 1])
        positions = np.arange(start[row], stop[row], dtype=np.int32)
        frame.token_ids[begin:end] = table.tokens[lanes[row], start[row] : stop[row]]
        frame.positions[begin:end] = positions
        frame.kv_slots[begin:end] = (
            table.table[lanes[row], positions // size] * size + positions % size
        )
    return tokens


def _write_tables(frame: PlanFrame, table: LaneTable, lanes: Indices, stop: Int32s) -> int:
    """Writes block_indptr and block_ids as far as [0:stop) needs; returns the entries.

    Entry e of row r lies at the flat index table_row[lane] + e - indptr[r]: the rows' shifts,
    repeated, and the numbers of all entries.
    """
    rows = len(lanes)
    counts = (stop + np.int32(table.block_size - 1)) // np.int32(table.block_size)
    indptr = frame.block_indptr[: rows + 1]
    indptr[0] = 0
    np.add.accumulate(counts, out=indptr[1:])
    entries = int(indptr[rows])
    shifts = np.repeat(table.table_row[lanes] - indptr[:-1], counts)
    shifts += np.arange(entries)
    table.table.take(shifts, out=frame.block_ids[:entries], mode="clip")
    return entries
