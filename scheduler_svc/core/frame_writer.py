"""Writes the rows of a step straight into its frame: numpy arrays in, shared memory out.

`take` with `out` gathers without an array in between, and with flat indices it is several times as
fast as indexing by two arrays; mode "clip" is what makes `out` unbuffered, nothing is ever clipped.
"""

import numpy as np

from scheduler_svc.core.batch import InFlight
from scheduler_svc.core.lanes import LaneTable, Moment, Rows
from scheduler_svc.core.swap import NO_COPIES, Copies
from scheduler_svc.core.types import Bools, Int32s
from svc_wire.frames import PlanFrame
from svc_wire.ids import CARRIED_TOKEN, RowFlag

# Plain numbers: numpy works with a member of an enum at a multiple of the cost.
_SAMPLES, _CARRY, _BAN_STOP = (
    np.uint8(flag) for flag in (RowFlag.SAMPLES, RowFlag.CARRY, RowFlag.BAN_STOP)
)


class FrameWriter:
    """Writes plans for the sequences of `table`, in which it changes nothing."""

    def __init__(self, table: LaneTable) -> None:
        self._table = table
        self._size = np.int32(table.block_size)
        self._numbers = np.arange(0)
        """0, 1, 2, ... as far as they were needed."""

    def write(
        self, frame: PlanFrame, epoch: int, flight: InFlight, moment: Moment, copies: Copies
    ) -> None:
        """Fills and seals `frame`: row r computes positions [moment.planned[r]:flight.stop[r]).

        Rows of one token come first; a lane stands at most once.
        """
        rows, stop, count = flight.rows, flight.stop, len(flight.stop)
        carries: Bools = stop > moment.known
        frame.row_flags[:count] = (
            flight.samples * _SAMPLES
            | carries * _CARRY
            | (stop < rows.ban_until) * _BAN_STOP
            | rows.standing_flags
        )
        frame.row_lane[:count] = rows.lanes
        frame.row_start[:count] = moment.planned
        frame.row_stop[:count] = stop
        frame.settings[:, :count] = rows.settings
        frame.logprobs[:count] = rows.logprobs
        frame.seed[:count] = rows.seed
        frame.stop_ids[:count] = rows.stop_ids
        # Block b of a row's table holds positions [b * size:(b + 1) * size).
        last_block = (stop - 1) // self._size
        blocks = self._write_tables(frame, rows, last_block)
        copies_out, copies_in = copies
        if copies is not NO_COPIES:
            frame.write_copies(blocks, copies_out, copies_in)
        self._write_tokens(frame, flight, moment.planned, last_block, carries)
        frame.seal(
            epoch=epoch,
            step=flight.step,
            rows=count,
            tokens=flight.tokens,
            blocks=blocks,
            samples=int(np.count_nonzero(flight.samples)),
            copies_out=len(copies_out),
            copies_in=len(copies_in),
        )

    def _write_tables(self, frame: PlanFrame, rows: Rows, last_block: Int32s) -> int:
        """Writes block_indptr and block_ids as far as [0:stop) needs; returns the entries.

        Entry e of row r lies at the flat index table_row[r] + e - indptr[r]: the rows' shifts,
        repeated, and the numbers of all entries.
        """
        counts = last_block + 1
        indptr = frame.block_indptr[: len(counts) + 1]
        indptr[0] = 0
        np.add.accumulate(counts, out=indptr[1:])
        entries = int(indptr[-1])
        if entries > len(self._numbers):
            self._numbers = np.arange(2 * entries)
        shifts = np.repeat(rows.table_row - indptr[:-1], counts)
        shifts += self._numbers[:entries]
        self._table.table.take(shifts, out=frame.block_ids[:entries], mode="clip")
        return entries

    def _write_tokens(
        self,
        frame: PlanFrame,
        flight: InFlight,
        start: Int32s,
        last_block: Int32s,
        carries: Bools,
    ) -> None:
        """Writes query_indptr and the per-token arrays."""
        table, size, rows, count = self._table, self._size, flight.rows, len(start)
        lengths = flight.stop - start
        frame.query_indptr[0] = 0
        np.add.accumulate(lengths, out=frame.query_indptr[1 : count + 1])
        # All rows of one token at once; they come first.
        singles = count if flight.tokens == count else int(np.count_nonzero(lengths == 1))
        position, block = start[:singles], last_block[:singles]
        frame.token_ids[:singles] = CARRIED_TOKEN
        (told,) = (~carries[:singles]).nonzero()
        if len(told):
            where = rows.token_row[told] + position[told]
            frame.token_ids[told] = table.tokens.take(where)
        frame.positions[:singles] = position
        ids = table.table.take(rows.table_row[:singles] + block)
        frame.kv_slots[:singles] = (ids - block) * size + position
        # Pieces of prompts: few rows, each a slice.
        for row in range(singles, count):
            begin, end = int(frame.query_indptr[row]), int(frame.query_indptr[row + 1])
            self._write_piece(frame, int(rows.lanes[row]), begin, end, int(start[row]))

    def _write_piece(self, frame: PlanFrame, lane: int, begin: int, end: int, start: int) -> None:
        """Writes tokens [begin:end) of the step: positions of `lane` from `start` on."""
        table, size = self._table, self._size
        stop = start + end - begin
        positions = np.arange(start, stop, dtype=np.int32)
        frame.token_ids[begin:end] = table.tokens[lane, start:stop]
        frame.positions[begin:end] = positions
        frame.kv_slots[begin:end] = table.table[lane, positions // size] * size + positions % size
