"""Which kernel computes the attention of a mixed step sooner: ours or FlashInfer's.

Ours reads the keys of rows that decode at the memory's speed, but does not split a row;
FlashInfer's is twice as quick over prompts, and treats a row of one token as a tile of many. The
figures are of an H200 with 8 KV heads of dimension 128 (`python -m bench.attention`); both kernels
scale alike with heads, so that only their ratio counts.
"""

from typing import NamedTuple

from svc_wire.frames import BatchPlan


class _Costs(NamedTuple):
    """In nanoseconds of the whole device."""

    key: float
    """A key that a row of one token reads."""
    pair: float
    """A token of a longer row and a key that it sees."""


_OURS = _Costs(1.6, 0.063)
_FLASHINFER = _Costs(4.5, 0.033)
_OURS_ROW_KEY = 34.0
"""A key of a single row: rows are computed side by side, the keys of one in turn."""


def is_ours_quicker(plan: BatchPlan) -> bool:
    lengths = plan.row_stop - plan.row_start
    is_single = lengths == 1
    single_keys = plan.row_stop[is_single]
    keys = int(single_keys.sum())
    long_lengths = lengths[~is_single].astype(float)
    pairs = float((long_lengths * (plan.row_start[~is_single] + (long_lengths + 1) / 2)).sum())
    longest = int(single_keys.max(initial=0))
    ours = max(_OURS.key * keys + _OURS.pair * pairs, _OURS_ROW_KEY * longest)
    return ours < _FLASHINFER.key * keys + _FLASHINFER.pair * pairs
