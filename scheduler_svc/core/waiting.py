"""The waiting sequences: in groups, each in the order of its keys.

A policy with one group is a sorted list, and looking at its head costs nothing. With several, the
groups are ranked whenever somebody looks; nobody does while no place is free. Where a policy
keeps to its ranks, it is asked only for those that were forgotten.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import chain

from scheduler_svc.core.policies import Key
from scheduler_svc.core.sequence import Sequence, State
from svc_wire.ids import SeqId


class WaitingQueue:
    """A list sorted by `Sequence.key`, which is unique."""

    def __init__(self) -> None:
        self._sorted: list[Sequence] = []
        self.rank: Key | None = None
        """Where the policy puts this group, if it said so and keeps to it."""

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sorted)

    @property
    def head(self) -> Sequence | None:
        return self._sorted[0] if self._sorted else None

    def add(self, sequence: Sequence) -> None:
        insort(self._sorted, sequence, key=lambda other: other.key)

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._sorted, sequence.key, key=lambda other: other.key)
        assert self._sorted[index] is sequence
        del self._sorted[index]

    def sort(self) -> None:
        """Orders them anew after their keys have changed."""
        self._sorted.sort(key=lambda other: other.key)

    def check(self) -> None:
        """Asserts order and state."""
        keys = [sequence.key for sequence in self._sorted]
        assert keys == sorted(set(keys)), "waiting is out of order"
        assert all(s.state is State.WAITING and s.lane is None for s in self._sorted)


class WaitingGroups:
    """A WaitingQueue for each group that has somebody waiting.

    Sequences of the group None go before all others, whatever the policy ranks: those that were
    overtaken too often.
    """

    def __init__(self, rank: Callable[[str, WaitingQueue], Key]) -> None:
        """`rank` is asked about groups when there are several."""
        self._rank = rank
        self._groups: dict[str | None, WaitingQueue] = {}
        self._members: dict[SeqId, Sequence] = {}
        self._by_age: list[SeqId] = []
        """A heap; numbers of those that are gone are dropped when they come up."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._groups.values())

    @property
    def groups(self) -> list[str]:
        """The policy's groups."""
        return [name for name in self._groups if name is not None]

    @property
    def head(self) -> Sequence | None:
        """Whose turn it is."""
        if None in self._groups:
            return self._groups[None].head
        if len(self._groups) < 2:
            return next(iter(self), None)
        ranked = (
            (self._rank(name, queue), first.key, first)
            for name, queue in self._groups.items()
            if name is not None and (first := queue.head)
        )
        return min(ranked, key=lambda place: place[:2])[2]

    @property
    def eldest(self) -> Sequence | None:
        """Whoever came first, whatever the policy says."""
        while self._by_age and self._by_age[0] not in self._members:
            heappop(self._by_age)
        return self._members[self._by_age[0]] if self._by_age else None

    def add(self, sequence: Sequence) -> None:
        self._groups.setdefault(sequence.group, WaitingQueue()).add(sequence)
        self._members[sequence.seq_id] = sequence
        heappush(self._by_age, sequence.seq_id)

    def remove(self, sequence: Sequence) -> None:
        queue = self._groups[sequence.group]
        queue.remove(sequence)
        del self._members[sequence.seq_id]
        if not queue:
            del self._groups[sequence.group]

    def forget_rank(self, group: str) -> None:
        """The policy may put the group elsewhere from now on."""
        if queue := self._groups.get(group):
            queue.rank = None

    def check(self) -> None:
        """Asserts order, state and grouping."""
        for name, queue in self._groups.items():
            queue.check()
            assert len(queue), "an empty group is kept"
            assert all(sequence.group == name for sequence in queue), "in another's group"
        assert {sequence.seq_id for sequence in self} == self._members.keys(), "a member is lost"
