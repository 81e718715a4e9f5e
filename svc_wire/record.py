"""One record of shared memory: header, content, checksum. What plans and results have in common.

The writer fills the content, then seals it. The reader opens it, which proves that the record is
ours, whole, and the one that was asked for; bounds are checked by those who know them.
"""

import mmap
import struct
import time
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from svc_wire.errors import ForeignFrame, StaleFrame, TornFrame
from svc_wire.layout import HEADER, LAYOUT_VERSION

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Memory = mmap.mmap | bytearray

WORD_BYTES = 8

# The header as a struct, derived from its dtype: packing a tuple is ten times as fast as assigning
# it to a numpy record.
_CODES = {"<u4": "I", "<u8": "Q", "<i8": "q"}
_HEADER = struct.Struct("<" + "".join(_CODES[HEADER[name].str] for name in HEADER.names or ()))
assert _HEADER.size == HEADER.itemsize


class Header(NamedTuple):
    """The fields of `layout.HEADER`, in its order."""

    checksum: int
    magic: int
    version: int
    epoch: int
    step: int
    used_bytes: int
    rows: int
    tokens: int
    blocks: int
    samples: int
    copies_out: int
    copies_in: int
    written_ns: int


assert Header._fields == HEADER.names


@lru_cache(maxsize=8)
def _weights(words: int) -> Words:
    """An odd factor for each word of a record; [words], the same in every process."""
    mixed = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    return (mixed ^ (mixed >> np.uint64(29))) | np.uint64(1)


class Record:
    """A record at `offset` of `buffer`, as bytes and as the sections of its dtype."""

    magic: int

    def __init__(self, buffer: Memory, dtype: np.dtype, offset: int, writable: bool) -> None:
        self.raw: Bytes = np.ndarray((dtype.itemsize,), np.uint8, buffer, offset)
        if not writable:
            self.raw.flags.writeable = False
        self.sections: np.void = self.raw.view(dtype)[0]
        self._words: Words = self.raw.view(np.uint64)
        self._factors = _weights(len(self._words))
        self._memory = self.raw.data

    def _seal(
        self,
        used_bytes: int,
        *,
        epoch: int,
        step: int,
        rows: int,
        tokens: int = 0,
        blocks: int = 0,
        samples: int = 0,
        copies_out: int = 0,
        copies_in: int = 0,
    ) -> None:
        """Completes the record: its first `used_bytes` hold this step."""
        assert used_bytes % WORD_BYTES == 0
        _HEADER.pack_into(
            self._memory, 0,
            0, self.magic, LAYOUT_VERSION, epoch, step, used_bytes,
            rows, tokens, blocks, samples, copies_out, copies_in, time.monotonic_ns(),
        )  # fmt: skip
        self._words[0] = self.checksum(used_bytes)

    def _open(self, epoch: int, step: int) -> Header:
        """The header, if the record is intact and of (epoch, step).

        Raises ForeignFrame, TornFrame or StaleFrame.
        """
        header = Header._make(_HEADER.unpack_from(self._memory))
        if header.magic != self.magic or header.version != LAYOUT_VERSION:
            raise ForeignFrame(
                f"expected magic {self.magic:#x} version {LAYOUT_VERSION}, "
                f"found {header.magic:#x} version {header.version}"
            )
        used = header.used_bytes
        if used % WORD_BYTES or not HEADER.itemsize <= used <= self.raw.nbytes:
            raise TornFrame(f"used_bytes is {used}, the record has {self.raw.nbytes}")
        if header.checksum != self.checksum(used):
            raise TornFrame(f"checksum of step {header.step} does not match its content")
        if (header.epoch, header.step) != (epoch, step):
            raise StaleFrame(
                f"expected epoch {epoch} step {step}, found {header.epoch} step {header.step}"
            )
        return header

    def checksum(self, used_bytes: int) -> int:
        """Weighted sum, mod 2**64, of the used words after the checksum itself.

        The factors are odd, so that a change of any one word shows; they differ, so that two words
        that trade places show too, as when a row's tail is left from an earlier step.
        """
        words = used_bytes // WORD_BYTES
        return int(np.dot(self._words[1:words], self._factors[1:words]))
