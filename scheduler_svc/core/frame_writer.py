"""Writes the rows of a step straight into its frame: numpy arrays in, shared memory out."""

import numpy as np

from scheduler_svc.core.lanes import LaneTable
from scheduler_svc.core.types import Int32s
from svc_wire.frames import PlanFrame
from svc_wire.ids import CARRIED_TOKEN, RowFlag


def write_plan(
    frame: PlanFrame, table: LaneTable, lanes: Int32s, lengths: Int32s, *, epoch: int, step: int
) -> Int32s:
    """Fills and seals `frame`: row r computes the next lengths[r] positions of lanes[r].

    Rows of one token come first; a lane stands at most once. Returns the rows' flags [R]. Changes
    nothing in `table`.
    """
    rows = len(lanes)
    start = table.planned[lanes]
    stop = start + lengths
    known = table.known[lanes]
    flags: Int32s = (
        (stop == known + table.pending[lanes]) * np.int32(RowFlag.SAMPLES)
        | (stop > known) * np.int32(RowFlag.CARRY)
        | (stop < table.ban_until[lanes]) * np.int32(RowFlag.BAN_STOP)
    )
    frame.row_lane[:rows] = lanes
    frame.row_start[:rows] = start
    frame.row_stop[:rows] = stop
    frame.row_flags[:rows] = flags
    frame.temperature[:rows] = table.temperature[lanes]
    frame.top_k[:rows] = table.top_k[lanes]
    frame.top_p[:rows] = table.top_p[lanes]
    frame.min_p[:rows] = table.min_p[lanes]
    frame.seed[:rows] = table.seed[lanes]
    frame.stop_ids[:rows] = table.stop_ids[lanes]
    tokens = _write_tokens(frame, table, lanes, start, stop, flags)
    blocks = _write_tables(frame, table, lanes, stop)
    frame.seal(
        epoch=epoch,
        step=step,
        rows=rows,
        tokens=tokens,
        blocks=blocks,
        samples=int((flags & RowFlag.SAMPLES).sum()),
    )
    return flags


def _write_tokens(
    frame: PlanFrame,
    table: LaneTable,
    lanes: Int32s,
    start: Int32s,
    stop: Int32s,
    flags: Int32s,
) -> int:
    """Writes query_indptr and the per-token arrays; returns the number of tokens."""
    rows, size = len(lanes), table.block_size
    lengths = stop - start
    frame.query_indptr[0] = 0
    np.cumsum(lengths, out=frame.query_indptr[1 : rows + 1])
    tokens = int(frame.query_indptr[rows])
    # All rows of one token at once; they come first.
    singles = int((lengths == 1).sum())
    lane, position = lanes[:singles], start[:singles]
    carried = (flags[:singles] & RowFlag.CARRY) != 0
    frame.token_ids[:singles] = np.where(carried, CARRIED_TOKEN, table.tokens[lane, position])
    frame.positions[:singles] = position
    frame.kv_slots[:singles] = table.table[lane, position // size] * size + position % size
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


def _write_tables(frame: PlanFrame, table: LaneTable, lanes: Int32s, stop: Int32s) -> int:
    """Writes block_indptr and block_ids as far as [0:stop) needs; returns the entries."""
    rows = len(lanes)
    counts = -(-stop // table.block_size)
    frame.block_indptr[0] = 0
    np.cumsum(counts, out=frame.block_indptr[1 : rows + 1])
    entries = int(frame.block_indptr[rows])
    width = int(counts.max())
    rectangle = table.table[lanes, :width]
    frame.block_ids[:entries] = rectangle[np.arange(width, dtype=np.int32) < counts[:, None]]
    return entries
