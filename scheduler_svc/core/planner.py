"""Plans the steps of one epoch: who moves, by how many tokens, who joins and who yields.

There is no prefill phase and no decode phase. A sequence has `known + pending` tokens and `planned`
positions; each step moves `planned` towards the length, within one budget of tokens. Where it gets
there, a token is sampled, which makes the length grow.

A step is planned in this order:
    1. yield    the first waiting sequence displaces the last running ones that it outranks
    2. grow     running sequences get the blocks that their next token needs; for lack of memory the
                last of them is pre-empted (it waits again; its KV is swapped out, or recomputed
                from its known tokens, whichever is cheaper)
    3. share    every running sequence gets a row with one token; what is left of the budget goes,
                in the policy's order, to those who still read their prompts and to those who wait:
                they are admitted while there is memory

Everything is decided from what is known when the step is planned. That a sequence will end by
length is known; that it will sample a stop id is not: such rows are late, the executor masks them,
and `settling` drops them because their lane has changed hands.
"""

from typing import NamedTuple

import numpy as np

from scheduler_svc.core.batch import Batch, InFlight
from scheduler_svc.core.frame_writer import FrameWriter
from scheduler_svc.core.lanes import Moment, Rows
from scheduler_svc.core.pace import Pace
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.swap import Copies
from scheduler_svc.core.types import Indices, Int32s, PlannedStep
from svc_wire.frames import PlanFrame


class _Grown(NamedTuple):
    """The running sequences when each has the memory that its next token needs."""

    rows: Rows
    moment: Moment
    """Before they grew."""
    needed: Int32s
    """As `Batch.needed` says."""
    preempted: bool
    """Whether it took a pre-emption."""


class Planner:
    """Moves sequences between the queue and `batch`, and writes what the executor is to do."""

    def __init__(self, roster: Roster, batch: Batch, pace: Pace, itl_target_ms: float) -> None:
        self._roster = roster
        self._batch = batch
        self._pace = pace
        self._itl_target_s = itl_target_ms / 1e3
        self._writer = FrameWriter(batch.table)

    def plan(self, frame: PlanFrame | None) -> PlannedStep | None:
        """Fills and seals `frame`, if there is one; None if there is nothing to do."""
        batch = self._batch
        if not self._roster.suspects:
            self._yield_to_head()
        grown = self._grow()
        lanes, needed, busy = grown.rows.lanes, grown.needed, grown.needed > 0
        if np.count_nonzero(busy) < len(busy):
            lanes, needed = lanes[busy], needed[busy]
        # Whoever was pre-empted just now must not come back in the same breath.
        lengths, admitted = self._share_budget(lanes, needed, may_admit=not grown.preempted)
        if admitted:
            lanes = np.concatenate([lanes, np.array([s.lane for s, _ in admitted], np.intp)])
            lengths = np.concatenate([lengths, np.array([n for _, n in admitted], np.int32)])
        if not len(lanes):
            return None
        copies = batch.swap.take_copies()
        flight = self._write(frame, lanes, lengths, grown, copies)
        return PlannedStep(
            epoch=batch.epoch,
            step=flight.step,
            tokens=flight.tokens,
            stop=flight.stop,
            first_rows=tuple(s.seq_id for s, _ in admitted if s.admissions == 1),
            copies_out=len(copies[0]),
            copies_in=len(copies[1]),
        )

    def _yield_to_head(self) -> None:
        batch, order = self._batch, self._roster.order
        while (
            (head := order.displacer())
            and batch.running
            and head.key < batch.running[-1].key
            and not (batch.has_place and batch.hit(head) is not None)
        ):
            self._preempt(batch.running[-1])

    def _grow(self) -> _Grown:
        """Extends the block tables that are full."""
        batch, table = self._batch, self._batch.table
        size, preempted = np.int32(table.block_size), False
        while True:
            rows = batch.rows
            moment = table.moment(rows.lanes)
            needed = batch.needed(moment)
            full = moment.planned >= moment.blocks * size
            (growing,) = (full & (needed > 0)).nonzero()
            if len(growing) <= batch.pool.available:
                break
            self._preempt(self._roster.order.victim(batch.running))
            preempted = True
        if len(growing):
            batch.grow(rows.lanes[growing])
        return _Grown(rows, moment, needed, preempted)

    def _preempt(self, sequence: Sequence) -> None:
        self._roster.preempt(self._batch, sequence, self._pace.prompt_token_s)

    def _share_budget(
        self, lanes: Indices, needed: Int32s, *, may_admit: bool
    ) -> tuple[Int32s, list[tuple[Sequence, int]]]:
        """Shares the step's tokens: lengths for the rows of `lanes`, and who is admitted.

        Everybody who runs has one token. The rest goes, in the policy's order, to those who read
        their prompts and those who wait.
        """
        order, table = self._roster.order, self._batch.table
        lengths = np.ones_like(needed)
        rows = (needed > 1).nonzero()[0].tolist()
        budget = self._pieces_budget(len(lanes), decoding=len(lanes) - len(rows))
        admitted: list[tuple[Sequence, int]] = []
        readers = {table.occupant(int(lanes[row])): row for row in rows}
        for reader in order.sorted(readers):
            if may_admit:
                budget = self._admit(budget, admitted, before=reader)
            row = readers[reader]
            lengths[row] = order.piece(reader, int(needed[row]), budget + 1)
            budget -= int(lengths[row]) - 1
        if may_admit:
            self._admit(budget, admitted)
        return lengths, admitted

    def _pieces_budget(self, rows: int, decoding: int) -> int:
        """Tokens of prompts that a step of so many rows may read."""
        budget = self._batch.step_tokens_max - rows
        if self._itl_target_s and decoding:
            budget = min(budget, self._pace.piece_tokens(self._itl_target_s))
        return budget

    def _admit(
        self, budget: int, admitted: list[tuple[Sequence, int]], before: Sequence | None = None
    ) -> int:
        """Moves waiting sequences into the batch, only such as go before `before`.

        Adds each to `admitted` with the length of its row; returns what is left of the budget.
        """
        batch, roster = self._batch, self._roster
        while budget > 0 and batch.has_place and (head := roster.next_waiting(batch)):
            if before and not roster.order.precedes(head, before):
                break
            hit = batch.hit(head)
            if hit is None:
                break
            copied_s = batch.swap.in_s
            there = roster.admit(batch, head, hit)
            length = roster.order.piece(head, len(head.tokens) - there, budget)
            copied = self._pace.tokens_in(batch.swap.in_s - copied_s)
            budget = max(0, budget - length - copied)
            admitted.append((head, length))
        return budget

    def _write(
        self,
        frame: PlanFrame | None,
        lanes: Indices,
        lengths: Int32s,
        grown: _Grown,
        copies: Copies,
    ) -> InFlight:
        """Writes the frame, rows of one token first, and accounts for the step."""
        batch, table = self._batch, self._batch.table
        longer = lengths != 1
        if np.count_nonzero(longer):
            order = np.argsort(longer, kind="stable")
            lanes, lengths = lanes[order], lengths[order]
        if lanes is grown.rows.lanes:
            rows, moment = grown.rows, grown.moment
        else:
            rows, moment = table.rows(lanes), table.moment(lanes)
        stop = moment.planned + lengths
        flight = InFlight(
            step=batch.step + 1,
            rows=rows,
            changes=table.changes,
            samples=stop == moment.known + moment.pending,
            stop=stop,
            tokens=int(np.add.reduce(lengths)),
        )
        if frame is not None:
            self._writer.write(frame, batch.epoch, flight, moment, copies)
        table.planned[lanes] = stop
        table.pending[lanes] = moment.pending + flight.samples
        batch.step += 1
        batch.in_flight.append(flight)
        batch.note_planned(lanes, moment, stop)
        return flight
