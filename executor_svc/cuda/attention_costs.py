"""Which kernel computes the attention of a mixed step sooner: ours or FlashInfer's for Hopper.

Ours reads the keys of rows that decode at the memory's speed; FlashInfer's is twice as quick over
prompts, and treats a row of one token as a tile of many. Either computes tiles side by side, and
the keys of one tile in turn, so that a single row with a long context can take all the time; ours
takes twice as long over it. The figures are of an H200 (`python -m bench.attention`).
"""

from typing import NamedTuple

from svc_wire.frames import BatchPlan


class _Costs(NamedTuple):
    """In nanoseconds of the whole device, of a layer with 32 query and 8 KV heads of 128."""

    key: float
    """A key that a row of one token reads."""
    pair: float
    """A token of a longer row and a key that it sees."""
    turn: float
    """A key of the longest row."""


_OURS = _Costs(1.6, 0.063, 34.0)
_FLASHINFER = _Costs(4.5, 0.033, 16.0)


def is_ours_quicker(plan: BatchPlan, query_heads: int, kv_heads: int) -> bool:
    lengths = plan.row_stop - plan.row_start
    is_single = lengths == 1
    if not is_single.any():
        return False
    long_lengths = lengths[~is_single].astype(float)
    seen = plan.row_start[~is_single] + (long_lengths + 1) / 2
    keys = float(plan.row_stop[is_single].sum()) * kv_heads / 8
    pairs = float((long_lengths * seen).sum()) * query_heads / 32
    turns = float(plan.row_stop.max())

    def cost(costs: _Costs) -> float:
        return max(costs.key * keys + costs.pair * pairs, costs.turn * turns)

    return cost(_OURS) < cost(_FLASHINFER)  # both grow alike with the dimension
