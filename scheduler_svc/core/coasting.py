"""Many steps at once while all that happens is decoding: for simulations, where no token matters.

Committing and planning a step over and over changes little as long as every row decodes, nobody
comes, ends or is pre-empted: known and planned grow by one, now and then a row gets a block, and a
full block becomes findable. Here n such steps are one. What they leave behind is the same, block by
block: the order in which blocks are taken and registered is that of the single steps.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from scheduler_svc.core.batch import Batch, InFlight
from scheduler_svc.core.lanes import Rows
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.types import Int32s

STEPS_MAX = 256
"""As much as a run at once saves; keeps what it allocates small."""


def steady_steps(roster: Roster, batch: Batch, depth: int) -> int:
    """How many commits and plans to come are known to be of that kind, if no row stops early."""
    if len(batch.in_flight) <= depth or not _is_steady(roster, batch):
        return 0
    table, rows = batch.table, batch.rows
    planned = table.planned.take(rows.lanes)
    room = table.blocks.take(rows.lanes) * np.int32(table.block_size) - planned
    if int(room.max()) >= table.block_size:
        return 0
    steps = min(STEPS_MAX, int((rows.length_limit - 1 - planned).min()))
    while steps and _blocks_needed(room, steps, table.block_size) > batch.pool.available:
        steps //= 2
    return steps


def _is_steady(roster: Roster, batch: Batch) -> bool:
    """Whether nobody can join, and those who run get a token from every step in flight."""
    if roster.suspects or roster.order.has_fault:
        return False
    if roster.waiting_count and (batch.has_place or _is_outranked(roster, batch)):
        return False
    return all(_gives_all(flight, batch.rows) for flight in batch.in_flight)


def _gives_all(flight: InFlight, rows: Rows) -> bool:
    """Whether it brings each of `rows` a token, and nobody else. Some may read a prompt before."""
    if not flight.samples.all():
        return False
    return flight.rows is rows or (
        np.array_equal(flight.rows.lanes, rows.lanes)
        and np.array_equal(flight.rows.tenancy, rows.tenancy)
    )


def _is_outranked(roster: Roster, batch: Batch) -> bool:
    head = roster.order.displacer()
    return head is not None and head.key < batch.running[-1].key


def _blocks_needed(room: Int32s, steps: int, size: int) -> int:
    """Blocks that are taken in so many steps by rows that have `room` left in their last one."""
    return int((-((room - steps) // size)).clip(0).sum())


def coast(batch: Batch, steps: int, token: int) -> None:
    """Commits and plans so many steps, more than are in flight; every row gets `token` in each.

    `steady_steps` says how many it may be.
    """
    batch.tidy()
    table, rows, size = batch.table, batch.rows, batch.table.block_size
    known, planned = table.known.take(rows.lanes), table.planned.take(rows.lanes)
    positions = known[:, np.newaxis] + np.arange(steps)
    table.tokens.reshape(-1)[rows.token_row[:, np.newaxis] + positions] = token
    # A row takes a block in the plan before which its last one is full, and can have one found in
    # the plan after the commit that fills it: each happens once every `size` steps.
    taking, filling = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for row, step in enumerate(((1 - planned) % size).tolist()):
        taking[step].append(row)
    for row, step in enumerate((-known % size).tolist()):
        filling[step].append(row)
    for step in range(1, steps + 1):
        if step % size in taking:
            batch.grow(rows.lanes[taking[step % size]])
        if batch.prefix_cache and step % size in filling:
            at = np.array(filling[step % size])
            full = (known[at] + step) // size
            batch.register_full(rows.lanes[at], full, full - 1)
    table.known[rows.lanes] = known + steps
    table.planned[rows.lanes] = planned + steps
    batch.step += steps
    depth = len(batch.in_flight)
    for index, flight in enumerate(batch.in_flight):
        batch.in_flight[index] = replace(
            flight,
            step=flight.step + steps,
            rows=rows,
            changes=table.changes,
            stop=planned + np.int32(steps - (depth - 1 - index)),
            tokens=len(planned),
        )
