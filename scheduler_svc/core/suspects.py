"""Finding the request that breaks the executor, without failing its neighbours.

When the executor is lost, every sequence with rows in flight may be the cause. All of them wait
here, and come back into the batch in groups. One that gets a token is cleared. If the executor is
lost again, the cause is among those that were not cleared: the next group is half as large. A group
of one that is lost often enough is the cause, and ends with an error. Others wait until no suspect
is left. So one bad request among n costs about log2(n) losses, and only itself its answer.
"""

from collections.abc import Iterable

from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.waiting import WaitingQueue


class Suspects:
    """The sequences that may be the cause of a loss, waiting or running."""

    def __init__(self, losses_max: int) -> None:
        self.waiting = WaitingQueue()
        self._losses_max = losses_max
        self._losses: dict[Sequence, int] = {}
        """Losses in a row, with rows of the sequence in flight and no token between."""
        self._group_max = 1

    def __bool__(self) -> bool:
        """Whether anybody is a suspect."""
        return bool(self._losses)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._losses

    def has_room(self, running: Iterable[Sequence]) -> bool:
        """Whether one more suspect may join those that run."""
        return sum(sequence in self._losses for sequence in running) < self._group_max

    def count_loss(self, in_flight: list[Sequence], gone: int) -> list[Sequence]:
        """Takes note of a loss with rows of these sequences in flight; returns who is the cause.

        Whoever was a suspect stays one; the others become suspects only if nobody was. `gone`: how
        many others had rows in flight and have ended since; one of them may have been the cause.
        """
        group = [sequence for sequence in in_flight if sequence in self._losses] or in_flight
        for sequence in group:
            self._losses[sequence] = self._losses.get(sequence, 0) + 1
        self._group_max = max(1, (len(group) + 1) // 2)
        is_alone = len(group) == 1 and not gone
        is_found = is_alone and self._losses[group[0]] >= self._losses_max
        return group if is_found else []

    def clear(self, sequences: Iterable[Sequence]) -> None:
        """They got a token, or ended: they are not suspects any more."""
        for sequence in sequences:
            self._losses.pop(sequence, None)
