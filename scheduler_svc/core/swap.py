"""Swapping: KV of pre-empted sequences waits in host memory, where that is cheaper than computing
it again.

    pre-empted     host blocks are taken; the next plan copies the KV out
    it waits       its KV lies in the host
    admitted       the same plan copies it in; the host blocks are given back with that plan

A plan's copies are done before anything else of its step, out before in. So the device blocks are
free at once: whoever takes them writes later than the copy reads. And what late steps of the former
tenancy write lands before the copy; it is beyond the known tokens, where nobody looks.

Leading blocks that others hold as well are not copied. They are found in the prefix cache as long
as anybody wants them; should they be gone when the sequence comes back, it is computed again.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from scheduler_svc.core.types import Int32s
from svc_wire.capacity import Capacity
from svc_wire.ids import SeqId

Copies = tuple[Int32s, Int32s]
"""Out [C, 2] and in [D, 2]: pairs of a device block and a host block."""

NO_COPIES: Copies = (np.empty((0, 2), np.int32), np.empty((0, 2), np.int32))


@dataclass(frozen=True, slots=True)
class _Swapped:
    """KV of positions [first block : tokens) of one sequence."""

    first: int
    """Index in the block table of the first block that was copied."""
    blocks: list[int]
    """Host blocks, in the order of the table."""
    tokens: int


class Swap:
    """The host blocks [0:host_blocks) of one epoch, and the copies that the next plan orders."""

    def __init__(self, capacity: Capacity) -> None:
        self._host_blocks = capacity.host_blocks
        self._block_size = capacity.block_size
        self._copy_s = capacity.block_copy_ns / 1e9
        self._free = list(range(capacity.host_blocks - 1, -1, -1))
        self._swapped: dict[SeqId, _Swapped] = {}
        self._out: dict[int, int] = {}
        """Host block to device block. What is dropped before a plan was made is not copied."""
        self._in: list[tuple[int, int]] = []
        """Device block, host block."""

    @property
    def free(self) -> int:
        """Host blocks that nobody holds."""
        return len(self._free)

    def out(
        self, seq_id: SeqId, table: list[int], shared: int, tokens: int, prompt_token_s: float
    ) -> bool:
        """Has the KV of positions [0:tokens) copied out, if that is cheaper; whether it is.

        `table` is the sequence's block table, the first `shared` blocks of which others hold too.
        Where memory is short, leading blocks are better than none.
        """
        tokens = min(tokens, (shared + len(self._free)) * self._block_size)
        count = -(-tokens // self._block_size) - shared
        spared_s = (tokens - shared * self._block_size) * prompt_token_s
        if count < 1 or 2 * count * self._copy_s >= spared_s:
            return False
        hosts = [self._free.pop() for _ in range(count)]
        self._swapped[seq_id] = _Swapped(shared, hosts, tokens)
        self._out.update(zip(hosts, table[shared : shared + count], strict=True))
        return True

    def into(self, seq_id: SeqId, table: list[int], hit: int) -> int:
        """Has its KV copied into the blocks of `table` beyond the first `hit`, which have theirs.

        Returns the tokens that need not be computed thanks to that, all before them included; 0 if
        there are none.
        """
        swapped = self._swapped.get(seq_id)
        if swapped is None:
            return 0
        end = swapped.first + len(swapped.blocks)
        if not swapped.first <= hit < end:
            self.drop(seq_id)
            return 0
        hosts = swapped.blocks[hit - swapped.first :]
        self._in += zip(table[hit:end], hosts, strict=True)
        del self._swapped[seq_id]
        self._give_back(swapped.blocks[: hit - swapped.first])
        return swapped.tokens

    def drop(self, seq_id: SeqId) -> None:
        """Gives its host blocks back, if it has any: it ended, or its KV is not to be trusted."""
        swapped = self._swapped.pop(seq_id, None)
        if swapped:
            self._give_back(swapped.blocks)

    def _give_back(self, hosts: list[int]) -> None:
        for host in reversed(hosts):
            self._out.pop(host, None)
            self._free.append(host)

    @property
    def in_s(self) -> float:
        """How long the copies in take that were asked for since the last plan."""
        return len(self._in) * self._copy_s

    def take_copies(self) -> Copies:
        """The copies that the plan of now must order.

        Only with it the host blocks that are read are given back: copies out to them would be done
        first.
        """
        if not self._out and not self._in:
            return NO_COPIES
        out = np.array([(device, host) for host, device in self._out.items()], np.int32)
        into = np.array(self._in, np.int32)
        self._free += [host for _, host in reversed(self._in)]
        self._out, self._in = {}, []
        return out.reshape(-1, 2), into.reshape(-1, 2)

    def check(self, waiting: Collection[SeqId]) -> None:
        """Asserts that each host block is in one place, and that who holds some of them waits."""
        held = [host for swapped in self._swapped.values() for host in swapped.blocks]
        everywhere = sorted([*self._free, *held])
        assert not self._in, "a sequence runs without its KV"
        assert everywhere == list(range(self._host_blocks)), "a host block is lost"
        assert self._out.keys() <= set(held), "a copy out for nobody"
        assert self._swapped.keys() <= set(waiting), "host blocks are held for who does not wait"
