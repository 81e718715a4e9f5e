"""The waiting sequences, kept in the policy's order."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from scheduler_svc.core.sequence import Sequence, State


class WaitingQueue:
    """A list sorted by `Sequence.key`, which is unique. Looking at the head costs nothing."""

    def __init__(self) -> None:
        self._sorted: list[Sequence] = []

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

    def check(self) -> None:
        """Asserts order and state."""
        keys = [sequence.key for sequence in self._sorted]
        assert keys == sorted(set(keys)), "waiting is out of order"
        assert all(s.state is State.WAITING and s.lane is None for s in self._sorted)
