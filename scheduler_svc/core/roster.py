"""Everybody who was accepted and has not ended, and the only place where one changes state.

    add ──► waiting ──── admit ───► running ──► ended
               ▲ │                   │
               │ └─► ended           │  pre-empted, or the executor was lost:
               └──────── put back ───┘  it waits with the tokens that are committed

Those who wait stand in the policy's order, or apart as suspects; those who run are in the batch.
"""

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.order import Order
from scheduler_svc.core.policies import LoadView, Policy
from scheduler_svc.core.question import Question
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.suspects import Suspects
from scheduler_svc.core.tenants import Tenants
from scheduler_svc.core.types import Ending, Int32s, Request, SchedulerConfig
from svc_wire.ids import FinishReason, SeqId


class Roster:
    """Owns the sequences. Who calls decides whom, when and why; here nobody gets lost."""

    def __init__(self, config: SchedulerConfig, policy: Policy, question: Question) -> None:
        self.sequences: dict[SeqId, Sequence] = {}
        self.order = Order(policy, config.overtakes_max, question)
        self.suspects = Suspects(config.losses_max)
        self.tenants = Tenants()
        self.batch: Batch | None = None
        """Where sequences run; None: there is no executor."""
        self.preemptions = self.swaps_out = self.swaps_in = 0
        self.cache_hit_tokens = self.recomputed_tokens = 0
        self._next_seq_id = 1

    @property
    def waiting_count(self) -> int:
        return len(self.order.waiting) + len(self.suspects.waiting)

    @property
    def running(self) -> list[Sequence]:
        """In the policy's order."""
        return self.batch.running if self.batch else []

    def set_batch(self, batch: Batch | None) -> None:
        """An executor came or went. Nobody may be running when it goes."""
        assert not self.running
        self.batch = batch
        self.order.set_batch(batch)

    def set_policy(self, policy: Policy) -> None:
        """Orders everybody anew. Raises PolicyFault, and changes nothing, if `policy` cannot."""
        self.order.set_policy(policy, self.sequences.values())
        self.suspects.waiting.sort()
        if self.batch:
            self.batch.sort()

    # -- waiting -----------------------------------------------------------------------------------

    def add(self, request: Request, load: LoadView) -> SeqId:
        """Raises Rejection if the policy refuses it."""
        seq_id = SeqId(self._next_seq_id)
        sequence = self.order.welcome(seq_id, request, load)
        self._next_seq_id += 1
        self.sequences[seq_id] = sequence
        self.order.enqueue(sequence)
        return seq_id

    def next_waiting(self, batch: Batch) -> Sequence | None:
        """Who joins next; while there are suspects nobody else does."""
        if not self.suspects:
            return self.order.next_waiting()
        return self.suspects.waiting.head if self.suspects.has_room(batch.running) else None

    def blame(self, seq_ids: set[int]) -> list[Sequence]:
        """Suspects those whose rows were in flight; returns who is found to be the cause.

        Some of them were pre-empted meanwhile, and move from the queue to the suspects.
        """
        present = [s for seq_id, s in self.sequences.items() if seq_id in seq_ids]
        waiting = [s for s in present if s.state is State.WAITING and s not in self.suspects]
        causes = self.suspects.count_loss(present, gone=len(seq_ids) - len(present))
        for sequence in waiting:
            if sequence in self.suspects:
                self.order.waiting.remove(sequence)
                self.suspects.waiting.add(sequence)
        return causes

    # -- from waiting to running and back ----------------------------------------------------------

    def admit(self, batch: Batch, sequence: Sequence, hit: list[int]) -> int:
        """Into the batch, from the blocks that `Batch.hit` found.

        Returns how many of its tokens need not be computed.
        """
        if sequence in self.suspects:
            self.suspects.waiting.remove(sequence)
        else:
            self.order.admit(sequence)
        cached = len(hit) * batch.table.block_size
        there = batch.start(sequence, hit)
        self.swaps_in += there > cached
        self.cache_hit_tokens += cached
        self.recomputed_tokens += max(0, sequence.last_planned - there)
        sequence.admissions += 1
        if sequence.admissions == 1:
            request = sequence.request
            # Of a resumed sequence some of the output may be cached too.
            sequence.cached_tokens = min(cached, len(request.prompt))
            self.tenants.admitted(request.tenant, len(request.prompt), sequence.cached_tokens)
        return there

    def known_tokens(self, sequence: Sequence) -> Int32s:
        """Prompt and committed output, of one that waits or runs."""
        if sequence.lane is None:
            return sequence.tokens
        assert self.batch is not None
        return self.batch.table.known_tokens(sequence.lane)

    def preempt(self, batch: Batch, sequence: Sequence, prompt_token_s: float) -> None:
        """`prompt_token_s`: what it takes to compute a token again."""
        sequence.preemptions += 1
        self.preemptions += 1
        self.swaps_out += batch.swap_out(sequence, prompt_token_s)
        self.put_back(batch, sequence)

    def put_back(self, batch: Batch, sequence: Sequence) -> None:
        """From running to waiting, with what is committed."""
        assert sequence.lane is not None
        sequence.tokens = batch.table.known_tokens(sequence.lane)
        sequence.last_planned = int(batch.table.planned[sequence.lane])
        self.order.tell_leave(sequence)
        batch.leave(sequence)
        sequence.move(State.WAITING)
        if sequence in self.suspects:
            self.suspects.waiting.add(sequence)
        else:
            self.order.enqueue(sequence)

    # -- endings -----------------------------------------------------------------------------------

    def end(self, sequence: Sequence, reason: FinishReason, message: str = "") -> Ending:
        """Ends it, whether it waits or runs."""
        if sequence.state is State.WAITING:
            return self._end_waiting(sequence, reason, message)
        assert self.batch is not None
        return self._end_running(self.batch, sequence, reason, message)

    def _end_waiting(self, sequence: Sequence, reason: FinishReason, message: str) -> Ending:
        suspect = sequence in self.suspects
        queue = self.suspects.waiting if suspect else self.order.waiting
        queue.remove(sequence)
        if self.batch:
            self.batch.swap.drop(sequence.seq_id)
        return self._strike(sequence, sequence.ending(reason, len(sequence.tokens), message))

    def _end_running(
        self, batch: Batch, sequence: Sequence, reason: FinishReason, message: str
    ) -> Ending:
        lane = sequence.lane
        assert lane is not None
        if reason is not FinishReason.ERROR:
            batch.register_last(lane)
        known = int(batch.table.known[lane])
        self.order.tell_leave(sequence)
        batch.leave(sequence)
        return self._strike(sequence, sequence.ending(reason, known, message))

    def _strike(self, sequence: Sequence, ending: Ending) -> Ending:
        sequence.move(State.FINISHED)
        self.suspects.clear([sequence])
        del self.sequences[sequence.seq_id]
        self.tenants.ended(sequence.request.tenant, ending.output_tokens, ending.preemptions)
        return ending

    # -- invariants --------------------------------------------------------------------------------

    def check(self, depth: int) -> None:
        """Asserts that everybody is in exactly one place, in order."""
        waiting, suspects = self.order.waiting, self.suspects
        self.order.check()
        suspects.waiting.check()
        assert not any(sequence in suspects for sequence in waiting)
        assert all(sequence in suspects for sequence in suspects.waiting)
        present = [*waiting, *suspects.waiting, *self.running]
        assert sorted(s.seq_id for s in present) == sorted(self.sequences), "a loss"
        if self.batch:
            self.batch.check(depth)
            self.batch.swap.check({s.seq_id for s in (*waiting, *suspects.waiting)})
