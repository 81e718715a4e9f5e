"""The batch: the executor's side of the world, for one epoch. Thrown away as a whole with it.

Owns lanes, blocks, the order of the running sequences and the steps in flight. Knows how a sequence
enters and leaves; not when.
"""

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from scheduler_svc.core.blocks import ROOT, BlockPool, chain_key
from scheduler_svc.core.lanes import LaneTable, Moment, Rows
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.swap import Swap
from scheduler_svc.core.types import Bools, Indices, Int32s, SchedulerConfig
from svc_wire.capacity import Capacity


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """What must be remembered of a published step to commit its result. R rows."""

    step: int
    rows: Rows
    changes: int
    """`LaneTable.changes` when it was planned."""
    samples: Bools  # [R]
    stop: Int32s  # [R]
    tokens: int
    """Input tokens of all rows."""
    departed: list[Sequence] = field(default_factory=list)
    """Who left the batch while this was the newest step, and so the last that may have their rows.
    """


class Batch:
    """Running sequences and what they hold."""

    def __init__(self, epoch: int, capacity: Capacity, config: SchedulerConfig) -> None:
        self.epoch = epoch
        self.capacity = capacity
        self.prefix_cache = config.prefix_cache
        self.step_tokens_max = min(config.step_tokens_max, capacity.tokens_max)
        # So that every running sequence can have a row, and a token of the budget, in every step.
        self.running_max = min(config.running_max, capacity.rows_max, self.step_tokens_max)
        self.table = LaneTable(capacity)
        self.pool = BlockPool(capacity.num_blocks)
        self.swap = Swap(capacity)
        self.in_flight: deque[InFlight] = deque()
        self.step = 0
        """The last planned step."""
        self.running: list[Sequence] = []
        """In the policy's order."""
        self._rows: Rows | None = None
        """What `rows` returns; None: somebody has entered or left since."""
        self._due: tuple[Indices, Moment, Int32s] | None = None
        """What `tidy` will register."""
        self._too_large = (0, 0, 0)
        """Whom `hit` refused last, and with how many running and blocks available."""

    @property
    def has_place(self) -> bool:
        return len(self.running) < self.running_max

    @property
    def rows(self) -> Rows:
        """Of the running sequences, in their order."""
        if self._rows is None:
            lanes = np.array([sequence.lane for sequence in self.running], np.intp)
            self._rows = self.table.rows(lanes)
        return self._rows

    @property
    def lanes(self) -> Indices:
        """Of the running sequences, in their order."""
        return self.rows.lanes

    def needed(self, moment: Moment) -> Int32s:
        """Positions of each running sequence that can be planned now.

        The last token of a sequence never needs its KV: a length ending costs no row.
        """
        length = moment.known + moment.pending
        needed: Int32s = np.minimum(length, self.rows.length_limit - 1)
        needed -= moment.planned
        return needed

    # -- entering and leaving ----------------------------------------------------------------------

    def hit(self, sequence: Sequence) -> list[int] | None:
        """The cached blocks that a waiting sequence would start from; None if it does not fit now.

        It fits if there is memory for all its known tokens and for one more block of each running
        sequence; the latter keeps it from being pre-empted at once. A hit never covers all known
        tokens: one must be computed, so that there is something to sample from.
        """
        self.tidy()
        size, known = self.table.block_size, len(sequence.tokens)
        found: list[int] = []
        if self._is_still_too_large(sequence):
            return None
        if self._may_hit(sequence):
            count = (known - 1) // size
            found = self.pool.find(islice(self._keys(sequence, sequence.tokens, count), count))
        cost = -(-known // size) - self.pool.count_held(found)
        if cost + len(self.running) <= self.pool.available:
            return found
        self._too_large = (sequence.seq_id, len(self.running), self.pool.available)
        return None

    def _is_still_too_large(self, sequence: Sequence) -> bool:
        """Whether `hit` has just said no, and nobody has left since: looking costs a look a block.

        What others have put into the cache meanwhile counts when somebody leaves.
        """
        seq_id, running, available = self._too_large
        return (
            sequence.seq_id == seq_id
            and len(self.running) >= running > 0
            and self.pool.available <= available
        )

    def _may_hit(self, sequence: Sequence) -> bool:
        """Whether it may start from blocks of others. Its own are for everybody."""
        return self.prefix_cache and not sequence.request.needs_history

    def count_cached(self, sequence: Sequence) -> int:
        """Known tokens of a sequence whose KV is there: in the prefix cache, or its own."""
        if sequence.lane is not None:
            return int(self.table.planned[sequence.lane])
        if not self._may_hit(sequence):
            return 0
        count = (len(sequence.tokens) - 1) // self.table.block_size
        keys = islice(self._keys(sequence, sequence.tokens, count), count)
        return len(self.pool.find(keys)) * self.table.block_size

    def start(self, sequence: Sequence, hit: list[int]) -> int:
        """Takes a sequence in, from the blocks that `hit` returned and what was swapped out.

        Returns how many of its tokens need not be computed.
        """
        table = self.table
        self.pool.hold(hit)
        fresh = -(-len(sequence.tokens) // table.block_size) - len(hit)
        blocks = hit + self.pool.take(fresh)
        cached = len(hit) * table.block_size
        cached = max(cached, self.swap.into(sequence.seq_id, blocks, len(hit)))
        sequence.lane = table.assign(sequence, blocks, cached)
        table.registered[sequence.lane] = len(hit)
        sequence.move(State.RUNNING)
        insort(self.running, sequence, key=lambda other: other.key)
        self._rows = None
        return cached

    def leave(self, sequence: Sequence) -> None:
        """Takes back lane and blocks; its rows in flight become stale."""
        assert sequence.lane is not None
        self.tidy()
        self.pool.release(self.table.block_table(sequence.lane))
        self.table.vacate(sequence.lane)
        sequence.lane = None
        self.running.remove(sequence)
        self._rows = None
        if self.in_flight:
            self.in_flight[-1].departed.append(sequence)

    def departed(self, flight: InFlight, seq_id: int) -> Sequence:
        """The sequence of a row of `flight`, which was the oldest step, that has left since."""
        flights = (flight, *self.in_flight)
        found = (s for step in flights for s in step.departed if s.seq_id == seq_id)
        sequence = next(found, None)
        assert sequence is not None, "a row in flight is of nobody who runs or has left since"
        return sequence

    def swap_out(self, sequence: Sequence, prompt_token_s: float) -> bool:
        """Has the KV of a sequence that is about to leave copied out, if that is cheaper than to
        compute it again at `prompt_token_s` a token; whether it is.
        """
        lane, table = sequence.lane, self.table
        assert lane is not None
        if sequence.request.needs_history:
            return False
        blocks = table.block_table(lane)
        # One known token stays to be computed, so that there is something to sample from.
        tokens = min(int(table.planned[lane]), int(table.known[lane]) - 1)
        shared = self.pool.count_shared(blocks)
        return self.swap.out(sequence.seq_id, blocks, shared, tokens, prompt_token_s)

    def sort(self) -> None:
        """Orders the running sequences anew after their keys have changed."""
        self.running.sort(key=lambda other: other.key)
        self._rows = None

    def seq_ids_in_flight(self) -> set[int]:
        """Whose rows are in flight: running sequences, and some that have left meanwhile."""
        return {seq_id for flight in self.in_flight for seq_id in flight.rows.seq_id.tolist()}

    def grow(self, lanes: Indices) -> None:
        """Gives each lane a block more; they must be available."""
        table = self.table
        blocks = table.blocks.take(lanes)
        table.table[lanes, blocks] = self.pool.take(len(lanes))
        table.blocks[lanes] = blocks + 1

    # -- the prefix cache --------------------------------------------------------------------------

    def note_planned(self, lanes: Indices, moment: Moment, stop: Int32s) -> None:
        """A step was planned: what `register` would do with it is due, but need not be done now."""
        self.tidy()
        self._due = lanes, moment, stop

    def tidy(self) -> None:
        """Does what is due; nobody looks into the prefix cache, enters or leaves before."""
        if self._due is not None:
            due, self._due = self._due, None
            self.register(*due)

    def register(self, lanes: Indices, moment: Moment, stop: Int32s) -> None:
        """Makes blocks findable whose tokens are known and whose KV published steps write.

        `moment` is that of `lanes` before the step that plans them up to `stop`.
        """
        if not self.prefix_cache:
            return
        full = np.minimum(moment.known, stop)
        full //= np.int32(self.table.block_size)
        (new,) = (full > moment.registered).nonzero()
        if len(new):
            self.register_full(lanes[new], full[new], moment.registered[new])

    def register_full(self, lanes: Indices, full: Int32s, first: Int32s) -> None:
        """Registers blocks [first:full) of each lane. Nearly always that is the last one alone."""
        table = self.table
        tokens, blocks = table.block_tokens(lanes, full - 1), table.table[lanes, full - 1].tolist()
        for lane, count, begin, block, content in zip(
            lanes.tolist(), full.tolist(), first.tolist(), blocks, tokens, strict=True
        ):
            keys = table.occupant(lane).block_keys
            if begin == count - 1 == len(keys):
                keys.append(chain_key(keys[-1] if keys else ROOT, content))
                self.pool.register(block, keys[-1])
            else:
                self._register_blocks(lane, count)
        table.registered[lanes] = full

    def register_last(self, lane: int) -> None:
        """The same for a sequence that ends: the KV of its last token may never be written."""
        if self.prefix_cache:
            self.tidy()
            table = self.table
            written = min(int(table.known[lane]) - 1, int(table.planned[lane]))
            self._register_blocks(lane, written // table.block_size)

    def _register_blocks(self, lane: int, full: int) -> None:
        table, first = self.table, int(self.table.registered[lane])
        if full <= first:
            return
        keys = self._keys(table.occupant(lane), table.tokens[lane], full)
        blocks = table.table[lane, first:full].tolist()
        for block, key in zip(blocks, keys[first:full], strict=True):
            self.pool.register(block, key)
        table.registered[lane] = full

    def _keys(self, sequence: Sequence, tokens: Int32s, count: int) -> list[bytes]:
        """Chain keys of `tokens`: of the first `count` blocks, all of them known, or of more."""
        keys, size = sequence.block_keys, self.table.block_size
        for index in range(len(keys), count):
            parent = keys[-1] if keys else ROOT
            content = tokens[index * size : (index + 1) * size].tobytes()
            keys.append(chain_key(parent, content))
        return keys

    def forget(self, sequence: Sequence) -> None:
        """Makes all blocks unfindable that have the tokens of `sequence`, wherever it is by now."""
        self.tidy()
        self.pool.forget(sequence.block_keys)

    # -- invariants --------------------------------------------------------------------------------

    def check(self, depth: int) -> None:
        """Asserts that lanes, blocks, order and steps in flight agree."""
        table, lanes = self.table, self.lanes
        keys = [sequence.key for sequence in self.running]
        assert keys == sorted(set(keys)), "running is out of order"
        assert len(self.running) <= self.running_max, "more sequences than rows"
        assert [sequence.lane for sequence in self.running] == lanes.tolist()
        for sequence in self.running:
            assert sequence.state is State.RUNNING
            assert sequence.lane is not None
            assert table.occupant(sequence.lane) is sequence, "a lane has another occupant"
        assert table.free_count + len(lanes) == self.capacity.lanes, "a lane is lost"
        self.pool.check([table.block_table(lane) for lane in lanes.tolist()])
        known, pending, planned = table.known[lanes], table.pending[lanes], table.planned[lanes]
        assert (planned <= known + pending).all(), "planned beyond the length"
        assert (known + pending <= table.length_limit[lanes]).all(), "sampled beyond the limit"
        assert (planned <= table.blocks[lanes] * table.block_size).all(), "beyond the block table"
        assert len(self.in_flight) <= depth + 1, "too many steps in flight"
        live = np.zeros(self.capacity.lanes, np.int32)
        for flight in self.in_flight:
            current = table.tenancy[flight.rows.lanes] == flight.rows.tenancy
            live[flight.rows.lanes[flight.samples & current]] += 1
        assert (live[lanes] == pending).all(), "pending differs from the rows in flight"
