"""Requests whose front end has gone: for a while they go on, so that their clients find them.

A client whose stream broke comes back through another front end (see Submit.stream in the wire),
and most are back within a second or two. Whoever has not come by the end of the grace is not
expected any more. The number of orphans is bounded by what was accepted; of those that end
meanwhile nothing is kept, since a client goes on from the tokens that it has.
"""

from collections.abc import Iterable, Iterator

from svc_wire.ids import SeqId


class Orphans:
    """Times are seconds, monotonic."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._until: dict[SeqId, float] = {}

    def __iter__(self) -> Iterator[SeqId]:
        return iter(self._until)

    def add(self, seq_ids: Iterable[SeqId], now: float) -> None:
        self._until |= dict.fromkeys(seq_ids, now + self._grace_s)

    def remove(self, seq_id: SeqId) -> None:
        """It has an owner again, or has ended. Does nothing for others."""
        self._until.pop(seq_id, None)

    def overdue(self, now: float) -> list[SeqId]:
        """Those whose grace is over. They stay until they are removed."""
        return [seq_id for seq_id, until in self._until.items() if until <= now]
