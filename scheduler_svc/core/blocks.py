"""The block pool: who holds which KV block, and which full blocks can be found by content.

A block is in exactly one of three places:
    held     referenced by one or more block tables (references > 0)
    cached   referenced by nobody, but findable by its content; the oldest is evicted first
    free     nothing in it is wanted

Blocks are handed back while steps that write to them may still be in flight. That is safe because
the executor runs steps in order: a late write lands before the first write of the block's next
holder, and a holder reads only what it has written. Full blocks are never written again, so late
writes cannot touch a findable block.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.kv_index import KvIndex

Int32s = npt.NDArray[np.int32]

ROOT = b""
"""The chain key before the first block."""


def chain_key(parent: bytes, tokens: bytes) -> bytes:
    """The key of a full block: a digest of its tokens and, through `parent`, of all before it."""
    return blake2b(parent + tokens, digest_size=16).digest()


class BlockPool:
    """Free list, reference counts and prefix cache of [0:num_blocks)."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._by_key: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Blocks that `take` can hand out: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    def take(self, count: int) -> list[int]:
        """Hands out `count` blocks, evicting the oldest cached ones if need be."""
        assert 0 <= count <= self.available
        kept = max(0, len(self._free) - count)
        taken = self._free[kept:]
        taken.reverse()
        del self._free[kept:]
        taken += [self._evict() for _ in range(count - len(taken))]
        for block in taken:
            self._references[block] = 1
        return taken

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._by_key[self._key_of.pop(block)]
        return block

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The longest run of findable blocks, from the first key on. Holds nothing yet."""
        found = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def count_held(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are held already, so that `hold` takes nothing from `available`."""
        return sum(self._references[block] > 0 for block in blocks)

    def count_shared(self, table: Sequence[int]) -> int:
        """Leading blocks of a holder's table that somebody else holds too."""
        others = (self._references[block] > 1 for block in table)
        return sum(takewhile(bool, others))

    def hold(self, blocks: Sequence[int]) -> None:
        """Adds a reference to each of `blocks`, which `find` returned."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Takes a reference from each of a table's blocks, given in the order of the table.

        The last blocks are the first to be evicted later: they are of use only after those before.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, block
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def register(self, block: int, key: bytes) -> None:
        """Makes a full, held block findable, unless an equal one is already."""
        assert self._references[block] > 0, block
        if key not in self._by_key and block not in self._key_of:
            self._by_key[key] = block
            self._key_of[block] = key

    def forget(self, keys: Iterable[bytes]) -> None:
        """Makes blocks unfindable, held or cached: what is in them is not to be trusted."""
        for key in keys:
            block = self._by_key.pop(key, None)
            if block is None:
                continue
            del self._key_of[block]
            if block in self._cached:
                self._cached.pop(block)
                self._free.append(block)

    def index(self) -> KvIndex:
        """The findable blocks that nobody holds."""
        blocks = np.fromiter(self._cached, np.int32, len(self._cached))
        return KvIndex(blocks, tuple(self._key_of[block] for block in self._cached))

    def adopt(self, index: KvIndex) -> None:
        """Makes findable what a predecessor knew of. Nothing may have been handed out yet."""
        assert len(self._free) == self.num_blocks, "blocks are in use"
        self._key_of = dict(zip(index.blocks.tolist(), index.keys, strict=True))
        self._by_key = {key: block for block, key in self._key_of.items()}
        self._cached = OrderedDict.fromkeys(self._key_of)
        self._free = [block for block in self._free if block not in self._cached]
        assert len(self._by_key) == len(self._cached) == len(index), "a block or a key twice"
        assert len(self._free) + len(self._cached) == self.num_blocks, "a block that is none"

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Asserts that the pool agrees with the block tables of all running sequences."""
        references = [0] * self.num_blocks
        for table in tables:
            for block in table:
                references[block] += 1
        assert references == self._references, "reference counts differ from the block tables"
        held = {block for block, count in enumerate(references) if count}
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert len(held | free | cached) == len(held) + len(free) + len(cached), "in two places"
        assert len(held) + len(free) + len(cached) == self.num_blocks, "a block is lost"
        assert self._by_key == {key: block for block, key in self._key_of.items()}
        assert cached <= self._key_of.keys(), "a cached block cannot be found"
        assert not free & self._key_of.keys(), "a free block can be found"
