"""The scheduler: accepts requests, plans steps, commits results, accounts for every block.

There is no prefill phase and no decode phase. A sequence has `known + pending` tokens and `planned`
positions; each step moves `planned` towards the length, within one budget of tokens. Where it gets
there, a token is sampled, which makes the length grow.

A step is planned in this order:
    1. yield    the first waiting sequence displaces the last running ones that it outranks
    2. grow     running sequences get the blocks that their next token needs; for lack of memory the
                last of them is pre-empted (it waits again and is recomputed from its known tokens)
    3. share    every running sequence gets a row with one token; what is left of the budget goes,
                in the policy's order, to those who still read their prompts and to those who wait:
                they are admitted while there is memory

Everything is decided from what is known when the step is planned. That a sequence will end by
length is known; that it will sample a stop id is not: such rows are late, the executor masks them,
and here they are dropped because their lane has changed hands.
"""

import numpy as np

from scheduler_svc.core.batch import Batch, InFlight
from scheduler_svc.core.fit import misfit
from scheduler_svc.core.frame_writer import write_plan
from scheduler_svc.core.order import Order
from scheduler_svc.core.pace import Pace
from scheduler_svc.core.policies import Fcfs, LoadView, Policy
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.suspects import Suspects
from scheduler_svc.core.tenants import Tenants, TenantUsage
from scheduler_svc.core.types import (
    Bools,
    Ending,
    Indices,
    Int32s,
    PlannedStep,
    ProtocolViolation,
    Rejection,
    Request,
    SchedulerConfig,
    Stats,
    StepOutput,
)
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, StepResult
from svc_wire.ids import NO_TOKEN, FinishReason, RejectReason, RowFlag, RowStatus, SeqId

# Plain numbers: numpy compares with a member of an enum at a multiple of the cost.
_SAMPLES = np.int32(RowFlag.SAMPLES)
_STOPPED, _MASKED, _ERROR = (
    np.uint8(status) for status in (RowStatus.STOPPED, RowStatus.MASKED, RowStatus.ERROR)
)

_NOTHING = StepOutput(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), ())


class Scheduler:
    """Used by one thread. See the module's docstring for how it decides."""

    def __init__(self, config: SchedulerConfig, policy: Policy) -> None:
        self.config = config
        self._sequences: dict[SeqId, Sequence] = {}
        """All that have been accepted and have not ended."""
        self._order = Order(policy, config.overtakes_max)
        self._waiting = self._order.waiting
        self._suspects = Suspects(config.losses_max)
        self._pace = Pace()
        self._tenants = Tenants()
        self._batch: Batch | None = None
        self._capacity: Capacity | None = None
        """Of the last executor, whether or not it lives."""
        self._next_seq_id = 1
        self._steps = self._tokens = self._preemptions = self._cache_hit_tokens = 0

    # -- the policy --------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._order.policy

    @property
    def policy_fault(self) -> str:
        """Why the last policy that was replaced was replaced; empty if none was."""
        return self._order.last_fault

    def set_policy(self, policy: Policy) -> None:
        """Puts another policy in force from the next plan on: everybody is ordered anew.

        Raises PolicyFault, and changes nothing, if it cannot order the requests there are.
        """
        self._order.set_policy(policy, self._sequences.values())
        self._suspects.waiting.sort()
        if self._batch:
            self._batch.sort()

    def _replace_faulty_policy(self) -> None:
        if self._order.take_fault():
            self.set_policy(Fcfs())

    # -- the executor comes and goes ---------------------------------------------------------------

    @property
    def epoch(self) -> int | None:
        """The epoch in which steps are planned; None: there is no executor."""
        return self._batch.epoch if self._batch else None

    @property
    def next_step(self) -> int:
        """The number of the step that `plan` would plan. There must be an executor."""
        assert self._batch is not None
        return self._batch.step + 1

    def attach(self, capacity: Capacity, epoch: int) -> list[Ending]:
        """An executor is ready. Returns the endings of requests that can never fit this one."""
        assert self._batch is None, "the former executor was not given up"
        self._capacity = capacity
        self._pace = Pace()
        self._batch = Batch(epoch, capacity, self.config)
        self._order.set_batch(self._batch)
        endings = []
        for sequence in [*self._waiting, *self._suspects.waiting]:
            sequence.block_keys = []  # the block size may have changed
            if found := misfit(sequence.request, capacity):
                endings.append(self._end_waiting(sequence, FinishReason.ERROR, found[1]))
        return endings

    def executor_lost(self) -> list[Ending]:
        """The epoch is over: running sequences wait again with their known tokens.

        Returns the ending of a request that is found to be the cause; see `suspects`.
        """
        batch = self._batch
        if batch is None:
            return []
        causes = self._blame(batch.seq_ids_in_flight())
        for sequence in list(batch.running):
            self._put_back(batch, sequence)
        self._batch = None
        self._order.set_batch(None)
        message = "the executor fails whenever it computes this request"
        return [self._end_waiting(cause, FinishReason.ERROR, message) for cause in causes]

    def _blame(self, seq_ids: set[int]) -> list[Sequence]:
        """Suspects those whose rows were in flight; returns who is found to be the cause.

        Some of them were pre-empted meanwhile, and move from the queue to the suspects.
        """
        present = [s for seq_id, s in self._sequences.items() if seq_id in seq_ids]
        waiting = [s for s in present if s.state is State.WAITING and s not in self._suspects]
        causes = self._suspects.count_loss(present, gone=len(seq_ids) - len(present))
        for sequence in waiting:
            if sequence in self._suspects:
                self._waiting.remove(sequence)
                self._suspects.waiting.add(sequence)
        return causes

    # -- requests come and go ----------------------------------------------------------------------

    def add(self, request: Request, now_s: float = 0.0) -> SeqId:
        """Accepts a request, or raises Rejection. From here on it ends exactly once.

        `now_s` is the time on any clock that does not go back; only policies look at it.
        """
        if self._capacity is None:
            raise Rejection(RejectReason.NO_EXECUTOR, "no executor has been ready yet")
        if found := misfit(request, self._capacity):
            raise Rejection(*found)
        waiting = len(self._waiting) + len(self._suspects.waiting)
        if waiting >= self.config.waiting_max and not request.was_accepted:
            raise Rejection(RejectReason.QUEUE_FULL, f"{waiting} requests are waiting")
        seq_id = SeqId(self._next_seq_id)
        sequence = self._order.welcome(seq_id, request, self._load(now_s))
        self._next_seq_id += 1
        self._sequences[seq_id] = sequence
        self._order.enqueue(sequence)
        self._replace_faulty_policy()
        return seq_id

    def _load(self, now_s: float) -> LoadView:
        batch = self._batch
        return LoadView(
            now_s=now_s,
            waiting=len(self._waiting),
            running=len(batch.running) if batch else 0,
            running_max=batch.running_max if batch else self.config.running_max,
            step_s=self._pace.step_s,
            prompt_token_s=self._pace.prompt_token_s,
        )

    def abort(self, seq_id: SeqId, reason: FinishReason) -> Ending | None:
        """Ends a sequence at once; None if it has ended before."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return None
        if sequence.state is State.WAITING:
            return self._end_waiting(sequence, reason)
        assert self._batch is not None
        return self._end_running(self._batch, sequence, reason)

    # -- planning ----------------------------------------------------------------------------------

    def plan(self, frame: PlanFrame) -> PlannedStep | None:
        """Plans the next step into `frame` and seals it.

        None if there is nothing to do or enough steps are in flight. A planned step must be
        published; its result must be committed, in order, or the executor given up.
        """
        batch = self._batch
        if batch is None or len(batch.in_flight) > self.config.depth:
            return None
        self._replace_faulty_policy()
        if not self._suspects:
            self._yield_to_head(batch)
        needed, preempted = self._grow(batch)
        busy = needed > 0
        lanes, needed = batch.lanes[busy], needed[busy]
        # Whoever was pre-empted just now must not come back in the same breath.
        lengths, admitted = self._share_budget(batch, lanes, needed, may_admit=not preempted)
        if admitted:
            lanes = np.concatenate([lanes, np.array([s.lane for s, _ in admitted], np.intp)])
            lengths = np.concatenate([lengths, np.array([n for _, n in admitted], np.int32)])
        if not len(lanes):
            return None
        self._publish(batch, frame, lanes, lengths)
        first_rows = tuple(s.seq_id for s, _ in admitted if s.admissions == 1)
        return PlannedStep(batch.epoch, batch.step, len(lanes), first_rows)

    def _yield_to_head(self, batch: Batch) -> None:
        while (
            (head := self._order.displacer())
            and batch.running
            and head.key < batch.running[-1].key
            and not (batch.has_place and batch.hit(head) is not None)
        ):
            self._preempt(batch, batch.running[-1])

    def _grow(self, batch: Batch) -> tuple[Int32s, bool]:
        """Extends the block tables that are full.

        Returns what `Batch.needed` says after that, and whether it took a pre-emption.
        """
        table, pool = batch.table, batch.pool
        preempted = False
        while True:
            lanes, needed = batch.lanes, batch.needed()
            full = table.planned.take(lanes) >= table.capacity_of(lanes)
            growing = lanes[full & (needed > 0)]
            if len(growing) <= pool.available:
                break
            self._preempt(batch, self._order.victim(batch.running))
            preempted = True
        if len(growing):
            table.table[growing, table.blocks[growing]] = pool.take(len(growing))
            table.blocks[growing] += 1
        return needed, preempted

    def _share_budget(
        self, batch: Batch, lanes: Indices, needed: Int32s, *, may_admit: bool
    ) -> tuple[Int32s, list[tuple[Sequence, int]]]:
        """Shares the step's tokens: lengths for the rows of `lanes`, and who is admitted.

        Everybody who runs has one token. The rest goes, in the policy's order, to those who read
        their prompts and those who wait.
        """
        lengths = np.ones_like(needed)
        rows = np.flatnonzero(needed > 1).tolist()
        budget = self._pieces_budget(batch, len(lanes), decoding=len(lanes) - len(rows))
        admitted: list[tuple[Sequence, int]] = []
        readers = {batch.table.occupant(int(lanes[row])): row for row in rows}
        for reader in self._order.sorted(readers):
            if may_admit:
                budget = self._admit(batch, budget, admitted, before=reader)
            row = readers[reader]
            lengths[row] = self._order.piece(reader, int(needed[row]), budget + 1)
            budget -= int(lengths[row]) - 1
        if may_admit:
            self._admit(batch, budget, admitted)
        return lengths, admitted

    def _pieces_budget(self, batch: Batch, rows: int, decoding: int) -> int:
        """Tokens of prompts that a step of so many rows may read."""
        budget = batch.step_tokens_max - rows
        if self.config.itl_target_ms and decoding:
            budget = min(budget, self._pace.piece_tokens(self.config.itl_target_ms / 1e3))
        return budget

    def _admit(
        self,
        batch: Batch,
        budget: int,
        admitted: list[tuple[Sequence, int]],
        before: Sequence | None = None,
    ) -> int:
        """Moves waiting sequences into the batch, only such as go before `before`.

        Adds each to `admitted` with the length of its row; returns what is left of the budget.
        """
        while budget > 0 and batch.has_place and (head := self._next_waiting(batch)):
            if before and not self._order.precedes(head, before):
                break
            hit = batch.hit(head)
            if hit is None:
                break
            if head in self._suspects:
                self._suspects.waiting.remove(head)
            else:
                self._order.admit(head)
            cached = batch.start(head, hit)
            self._cache_hit_tokens += cached
            head.admissions += 1
            if head.admissions == 1:
                # Of a resumed sequence some of the output may be cached too.
                head.cached_tokens = min(cached, len(head.request.prompt))
                request = head.request
                self._tenants.admitted(request.tenant, len(request.prompt), head.cached_tokens)
            length = self._order.piece(head, len(head.tokens) - cached, budget)
            budget -= length
            admitted.append((head, length))
        return budget

    def _next_waiting(self, batch: Batch) -> Sequence | None:
        """Who joins next; while there are suspects nobody else does."""
        if not self._suspects:
            return self._order.next_waiting()
        return self._suspects.waiting.head if self._suspects.has_room(batch.running) else None

    @staticmethod
    def _publish(batch: Batch, frame: PlanFrame, lanes: Indices, lengths: Int32s) -> None:
        """Writes the frame, rows of one token first, and accounts for the step."""
        longer = lengths != 1
        if np.count_nonzero(longer):
            order = np.argsort(longer, kind="stable")
            lanes, lengths = lanes[order], lengths[order]
        table = batch.table
        stop = table.planned.take(lanes) + lengths
        batch.step += 1
        flags = write_plan(frame, table, lanes, stop, epoch=batch.epoch, step=batch.step)
        samples = (flags & _SAMPLES) != 0
        table.planned[lanes] = stop
        table.pending[lanes] += samples
        batch.in_flight.append(
            InFlight(
                step=batch.step,
                lanes=lanes,
                seq_ids=table.seq_id.take(lanes),
                tenancy=table.tenancy.take(lanes),
                samples=samples,
                stop=stop,
                tokens=int(frame.query_indptr[len(lanes)]),
            )
        )
        batch.register(lanes)

    # -- committing --------------------------------------------------------------------------------

    def commit(self, result: StepResult) -> StepOutput:
        """Takes in the result of the oldest step in flight.

        Results of other epochs, and of steps that were committed before, are ignored. Raises
        ProtocolViolation for a result that cannot be true; then the executor must be given up.
        """
        batch = self._batch
        if batch is None or result.epoch != batch.epoch:
            return _NOTHING
        next_step = batch.step - len(batch.in_flight) + 1
        if result.step < next_step:
            return _NOTHING
        if result.step > next_step or not batch.in_flight:
            raise ProtocolViolation(f"got the result of step {result.step}, not of {next_step}")
        flight = batch.in_flight.popleft()
        if len(result.row_status) != len(flight.lanes):
            raise ProtocolViolation(f"step {result.step} has {len(result.row_status)} rows")
        self._steps += 1
        self._pace.observe(result.timing, len(flight.lanes), flight.tokens)
        return self._settle(batch, flight, result)

    def _settle(self, batch: Batch, flight: InFlight, result: StepResult) -> StepOutput:
        table, status = batch.table, result.row_status
        current = table.tenancy.take(flight.lanes) == flight.tenancy
        if np.count_nonzero(current & (status == _MASKED)):
            raise ProtocolViolation(f"step {flight.step}: the row of a live sequence was masked")
        failed = flight.lanes[current & (status == _ERROR)]
        taken = current & flight.samples & (status <= _STOPPED)
        lanes, tokens, position = flight.lanes[taken], result.row_token[taken], flight.stop[taken]
        if (tokens == NO_TOKEN).any():
            raise ProtocolViolation(f"step {flight.step}: a row that samples has no token")
        assert (table.known[lanes] == position).all()
        table.tokens.reshape(-1)[table.token_row[lanes] + position] = tokens
        table.known[lanes] += 1
        table.pending[lanes] -= 1
        self._tokens += len(lanes)
        if self._suspects:
            self._suspects.clear(table.occupant(lane) for lane in lanes.tolist())
        seq_ids, indices = table.seq_id[lanes], position - table.prompt_len[lanes]
        endings = self._endings(batch, lanes, status[taken] == _STOPPED)
        for lane in failed.tolist():
            batch.pool.forget(table.block_table(lane))
            reason = "the model gave no finite scores for this sequence"
            failure = self._end_running(batch, table.occupant(lane), FinishReason.ERROR, reason)
            endings.append(failure)
        return StepOutput(seq_ids, indices, tokens, tuple(endings))

    def _endings(self, batch: Batch, lanes: Indices, stopped: Bools) -> list[Ending]:
        """Ends those of `lanes` that stopped or are full."""
        table = batch.table
        ended = stopped | (table.known.take(lanes) >= table.length_limit.take(lanes))
        reasons = (FinishReason.LENGTH, FinishReason.STOP_TOKEN)
        return [
            self._end_running(batch, table.occupant(lane), reasons[stop])
            for lane, stop in zip(lanes[ended].tolist(), stopped[ended].tolist(), strict=True)
        ]

    # -- how sequences change state ----------------------------------------------------------------

    def _preempt(self, batch: Batch, sequence: Sequence) -> None:
        sequence.preemptions += 1
        self._preemptions += 1
        self._put_back(batch, sequence)

    def _put_back(self, batch: Batch, sequence: Sequence) -> None:
        """From running to waiting, with what is committed."""
        assert sequence.lane is not None
        sequence.tokens = batch.table.known_tokens(sequence.lane)
        self._order.tell_leave(sequence)
        batch.leave(sequence)
        sequence.move(State.WAITING)
        if sequence in self._suspects:
            self._suspects.waiting.add(sequence)
        else:
            self._order.enqueue(sequence)

    def _end_running(
        self, batch: Batch, sequence: Sequence, reason: FinishReason, message: str = ""
    ) -> Ending:
        lane = sequence.lane
        assert lane is not None
        if reason is not FinishReason.ERROR:
            batch.register_last(lane)
        known = int(batch.table.known[lane])
        self._order.tell_leave(sequence)
        batch.leave(sequence)
        return self._end(sequence, reason, known, message)

    def _end_waiting(self, sequence: Sequence, reason: FinishReason, message: str = "") -> Ending:
        queue = self._suspects.waiting if sequence in self._suspects else self._waiting
        queue.remove(sequence)
        return self._end(sequence, reason, len(sequence.tokens), message)

    def _end(self, sequence: Sequence, reason: FinishReason, known: int, message: str) -> Ending:
        sequence.move(State.FINISHED)
        self._suspects.clear([sequence])
        del self._sequences[sequence.seq_id]
        ending = sequence.ending(reason, known, message)
        self._tenants.ended(sequence.request.tenant, ending.output_tokens, ending.preemptions)
        return ending

    # -- looking in --------------------------------------------------------------------------------

    def stats(self) -> Stats:
        batch = self._batch
        return Stats(
            waiting=len(self._waiting) + len(self._suspects.waiting),
            running=len(batch.running) if batch else 0,
            in_flight=len(batch.in_flight) if batch else 0,
            blocks_total=batch.pool.num_blocks if batch else 0,
            blocks_free=batch.pool.available if batch else 0,
            steps=self._steps,
            tokens=self._tokens,
            preemptions=self._preemptions,
            cache_hit_tokens=self._cache_hit_tokens,
            policy_faults=self._order.faults,
            reliefs=self._order.reliefs,
        )

    def tenants(self) -> dict[str, TenantUsage]:
        """What each tenant asked for and got."""
        return self._tenants.all()

    def check(self) -> None:
        """Asserts every invariant; for tests, the simulation, and production when idle."""
        self._order.check()
        self._suspects.waiting.check()
        assert not any(sequence in self._suspects for sequence in self._waiting)
        assert all(sequence in self._suspects for sequence in self._suspects.waiting)
        running = self._batch.running if self._batch else []
        present = [*self._waiting, *self._suspects.waiting, *running]
        assert sorted(s.seq_id for s in present) == sorted(self._sequences), "a loss"
        if self._batch:
            self._batch.check(self.config.depth)
