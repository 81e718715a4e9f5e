"""The policy in force, and what follows from its answers: who waits where, who is next, who yields.

A policy decides among equals before the law; this file is the law. Whoever has waited longest may
be overtaken so often and not once more; a policy whose answer cannot be used is replaced; what a
policy is told comes in time for what it is asked.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.guard import Guard
from scheduler_svc.core.policies import GroupView, Key, LoadView, Policy, RunningView
from scheduler_svc.core.question import Question
from scheduler_svc.core.sequence import Sequence, view_of
from scheduler_svc.core.types import PolicyFault, Rejection, Request
from scheduler_svc.core.waiting import WaitingGroups, WaitingQueue
from svc_wire.ids import RejectReason, SeqId


class Order:
    """Owns the waiting sequences and the order of all."""

    def __init__(self, policy: Policy, overtakes_max: int, question: Question) -> None:
        self.question = question
        """What a policy is being asked."""
        self._guard = Guard(policy, question)
        self._overtakes_max = overtakes_max
        self._batch: Batch | None = None
        self.waiting = WaitingGroups(self._rank)
        self.faults = 0
        """Policies that were replaced by fcfs."""
        self.last_fault = ""
        self.reliefs = 0
        """Sequences that were put before everybody, as they had been overtaken too often."""

    @property
    def policy(self) -> Policy:
        return self._guard.policy

    @property
    def policy_name(self) -> str:
        return self._guard.name

    def set_batch(self, batch: Batch | None) -> None:
        """Where sequences run from now on."""
        self._batch = batch

    # -- the policy --------------------------------------------------------------------------------

    def set_policy(self, policy: Policy, sequences: Iterable[Sequence]) -> None:
        """Puts `policy` in force; `sequences` are all that have not ended.

        Raises PolicyFault, and changes nothing, if it cannot order them. The caller then sorts what
        it keeps sorted by key.
        """
        guard = Guard(policy, self.question)
        places = [
            (sequence, guard.key(sequence.view), guard.group(sequence.view))
            for sequence in sequences
            if sequence.group is not None
        ]
        if guard.fault:
            raise PolicyFault(guard.fault)
        self._guard = guard
        waiting = list(self.waiting)
        for sequence in waiting:
            self.waiting.remove(sequence)
        for sequence, key, group in places:
            sequence.key, sequence.group = key, group
            sequence.tokens_told = max(sequence.tokens_told, self._progress(sequence))
        for sequence in sorted(waiting, key=lambda other: other.seq_id):
            self.enqueue(sequence)

    def distrust(self, reason: str) -> None:
        """The policy will have to be replaced."""
        self._guard.distrust(reason)

    @property
    def has_fault(self) -> bool:
        """Whether the policy will have to be replaced."""
        return bool(self._guard.fault)

    def take_fault(self) -> bool:
        """Whether the policy has to be replaced; says so once."""
        if not self._guard.fault:
            return False
        self.faults += 1
        self.last_fault = self._guard.fault
        return True

    # -- requests ----------------------------------------------------------------------------------

    def welcome(self, seq_id: SeqId, request: Request, load: LoadView) -> Sequence:
        """A sequence for `request`, in its place. Raises Rejection if the policy refuses it."""
        view = view_of(seq_id, request, load.now_s)
        if not request.was_accepted and (reason := self._guard.refuse(view, load)):
            raise Rejection(RejectReason.POLICY, reason)
        return Sequence(request, view, self._guard.key(view), self._guard.group(view))

    def enqueue(self, sequence: Sequence) -> None:
        """It waits from now on."""
        group, groups = sequence.group, self.waiting.groups
        if group is not None and group not in groups:
            self._tell_served()
            self._guard.waits(group, groups)
        self.waiting.add(sequence)

    def admit(self, sequence: Sequence) -> None:
        """It leaves the queue; the eldest that still waits counts who overtakes it."""
        self.waiting.remove(sequence)
        sequence.overtaken = 0
        eldest = self.waiting.eldest
        if eldest is None or eldest.seq_id > sequence.seq_id:
            return
        eldest.overtaken += 1
        if eldest.overtaken == self._overtakes_max:
            self._relieve(eldest)

    def _relieve(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        sequence.key, sequence.group = (-math.inf, sequence.seq_id), None
        self.waiting.add(sequence)
        self.reliefs += 1

    # -- who is next, and who yields ---------------------------------------------------------------

    def next_waiting(self) -> Sequence | None:
        """Whose turn it is, told what was served."""
        if self._guard.groups and len(self.waiting):
            self._tell_served()
        return self.waiting.head

    def displacer(self) -> Sequence | None:
        """The first waiting sequence, if it may pre-empt running ones that it outranks."""
        return self.waiting.head if self._guard.displaces else None

    def victim(self, running: list[Sequence]) -> Sequence:
        """Who of two or more is pre-empted: the last one, unless the policy picks another.

        Who was put before everybody is not, as long as there is anybody else.
        """
        others = [s for s in running if s.group is not None]
        if not self._guard.picks_victims or len(others) < 2:
            return running[-1]
        views = tuple(
            RunningView(
                request=sequence.view,
                known_tokens=self._known_tokens(sequence),
                preemptions=sequence.preemptions,
            )
            for sequence in others
        )
        self._tell_served()
        return others[self._guard.victim(views)]

    def sorted(self, readers: Collection[Sequence]) -> Iterable[Sequence]:
        """Running sequences, given in the order of their keys, in the policy's order."""
        if len(readers) < 2 or not self._guard.groups:
            return readers
        self._tell_served()
        return sorted(readers, key=self._place)

    def precedes(self, head: Sequence, reader: Sequence) -> bool:
        """Whether a waiting sequence's prompt is read before that of a running one."""
        return self._place(head) < self._place(reader)

    def _place(self, sequence: Sequence) -> tuple[bool, Key, Key]:
        """Smaller goes first: who was put before everybody, then by group, then by key."""
        if sequence.group is None or not self._guard.groups:
            return sequence.group is not None, (), sequence.key
        return True, self._rank_of(sequence.group, sequence, 0), sequence.key

    def piece(self, sequence: Sequence, wanted: int, room: int) -> int:
        """Tokens of a prompt that go into the step: 1 to the smaller of `wanted` and `room`."""
        return self._guard.piece(sequence.view, wanted, room)

    def _rank(self, name: str, queue: WaitingQueue) -> Key:
        if queue.rank is None or not self._guard.rank_is_kept:
            head = queue.head
            assert head is not None
            queue.rank = self._rank_of(name, head, len(queue))
        return queue.rank

    def _rank_of(self, group: str, head: Sequence, waiting: int) -> Key:
        assert self._batch is not None
        self._batch.tidy()  # or `count_cached` would, where it may be broken off: see question.py
        count_cached = partial(self._batch.count_cached, head)
        view = GroupView(name=group, waiting=waiting, head=head.view, count_cached=count_cached)
        return self._guard.rank(view)

    # -- what was served ---------------------------------------------------------------------------

    def tell_leave(self, sequence: Sequence) -> None:
        """The policy learns what a sequence got that leaves the batch."""
        if self._guard.counts:
            self._tell([sequence])

    def _tell_served(self) -> None:
        """The policy learns what everybody got since it was last told.

        It is told before it is asked, not after each step: so a step costs nothing.
        """
        if self._guard.counts and self._batch:
            self._tell(self._batch.running)

    def _tell(self, sequences: Iterable[Sequence]) -> None:
        prompt_tokens: Counter[str] = Counter()
        output_tokens: Counter[str] = Counter()
        for sequence in sequences:
            told, prompt = sequence.tokens_told, len(sequence.request.prompt)
            progress = self._progress(sequence)
            if progress > told and sequence.group is not None:
                prompt_tokens[sequence.group] += min(progress, prompt) - min(told, prompt)
                output_tokens[sequence.group] += max(progress, prompt) - max(told, prompt)
            sequence.tokens_told = max(told, progress)
        for group, tokens in prompt_tokens.items():
            self._guard.served(group, tokens, output_tokens[group])
            self.waiting.forget_rank(group)

    def _progress(self, sequence: Sequence) -> int:
        """How far it is served: read, as long as it reads its prompt, then committed. 0: waits."""
        if sequence.lane is None or self._batch is None:
            return 0
        table = self._batch.table
        planned, known = int(table.planned[sequence.lane]), int(table.known[sequence.lane])
        return planned if planned < len(sequence.request.prompt) else known

    def _known_tokens(self, sequence: Sequence) -> int:
        assert self._batch is not None
        return int(self._batch.table.known[sequence.lane])

    def check(self) -> None:
        """Asserts that the queue is in order, and that nobody was overtaken too often."""
        self.waiting.check()
        overtaken = max((sequence.overtaken for sequence in self.waiting), default=0)
        assert overtaken <= self._overtakes_max, "somebody starves"
