"""Attention by gathering: plain torch, any device, made for the CPU.

KV is written by slot mapping. Rows with one token (decode) are attended in groups of similar
length: the blocks of a group are gathered into one padded tensor, and one product serves all its
rows. Rows with several tokens (prefill chunks) are attended one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from executor_svc.attention import LayerCall
from executor_svc.kv_cache import KvCache
from svc_wire.frames import BatchPlan, Int32s

_PADDING_SHARE_MAX = 0.25
"""Most of a group's gathered blocks that may be padding."""
_GROUP_TOKENS_MAX = 1 << 16
"""Most tokens that are gathered at once; bounds the memory of a step."""


@dataclass(slots=True, eq=False)
class _Piece:
    """G rows of n tokens each whose KV is gathered together, from m blocks a row."""

    tokens: Tensor | slice
    """Where the rows' tokens are among the step's T tokens; G * n of them."""
    rows: int
    blocks: Tensor  # [G * m] block ids; padding is the scrap block
    positions: Tensor  # [G, n] of the queries
    length: int  # m * block_size
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> Tensor:
        """[G, 1, n, length] bool: which keys a query sees. Made once a step for all layers."""
        found = self._masks.get(window)
        if found is None:
            key = torch.arange(self.length, device=self.positions.device)
            query = self.positions[:, None, :, None]
            found = key <= query
            if window is not None:
                found &= key > query - window
            self._masks[window] = found
        return found


class GatherAttention:
    """The Attention of one KV cache; `begin` tells it the step."""

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._pieces: list[_Piece] = []
        self._kv_slots = torch.empty(0)

    def begin(self, plan: BatchPlan, kv_slots: Tensor) -> None:
        """Prepares for a step. `kv_slots` [T] int64: the plan's, with masked rows sent to scrap."""
        self._kv_slots = kv_slots
        self._pieces = list(self._cut(plan))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        keys, values = self._cache.flat(call.layer)
        keys.index_copy_(0, self._kv_slots, key)
        values.index_copy_(0, self._kv_slots, value)
        out = query.new_empty(query.shape[0], query.shape[1], value.shape[2])
        for piece in self._pieces:
            out[piece.tokens] = self._attend_piece(piece, query[piece.tokens], call)
        return out

    def _attend_piece(self, piece: _Piece, query: Tensor, call: LayerCall) -> Tensor:
        """[G * n, Hq, D] -> [G * n, Hq, Dv]."""
        shape = (piece.rows, piece.length)
        key = self._cache.keys[call.layer].index_select(0, piece.blocks)
        value = self._cache.values[call.layer].index_select(0, piece.blocks)
        out = masked_attention(
            query.view(piece.rows, -1, *query.shape[1:]).transpose(1, 2),
            key.view(*shape, *key.shape[2:]).transpose(1, 2),
            value.view(*shape, *value.shape[2:]).transpose(1, 2),
            piece.mask(call.window),
            call,
        )
        return out.transpose(1, 2).flatten(0, 1)

    def _cut(self, plan: BatchPlan) -> Iterator[_Piece]:
        lengths, tables = np.diff(plan.query_indptr), np.diff(plan.block_indptr)
        decode = np.flatnonzero(lengths == 1).astype(np.int32)
        for rows in _groups(decode, tables, self._cache.block_size):
            yield self._piece(plan, rows, plan.query_indptr[rows], tables)
        for row in np.flatnonzero(lengths > 1):
            first, last = int(plan.query_indptr[row]), int(plan.query_indptr[row + 1])
            yield self._piece(plan, np.array([row]), slice(first, last), tables)

    def _piece(
        self, plan: BatchPlan, rows: Int32s, tokens: Int32s | slice, tables: Int32s
    ) -> _Piece:
        device = self._kv_slots.device
        count = int(tables[rows].max())
        column = np.arange(count)
        inside = column < tables[rows, None]
        entry = np.where(inside, plan.block_indptr[rows, None] + column, 0)
        blocks = np.where(inside, plan.block_ids[entry], self._cache.num_blocks)
        positions = plan.positions[tokens].reshape(len(rows), -1)
        return _Piece(
            tokens if isinstance(tokens, slice) else torch.from_numpy(tokens).long().to(device),
            len(rows),
            torch.from_numpy(blocks.reshape(-1)).to(device),
            torch.from_numpy(positions.astype(np.int64)).to(device),
            count * self._cache.block_size,
        )


def _groups(rows: Int32s, tables: Int32s, block_size: int) -> Iterator[Int32s]:
    """Splits `rows` into groups of similar table length, longest first."""
    order = rows[np.argsort(-tables[rows], kind="stable")]
    while len(order):
        longest = int(tables[order[0]])
        used = np.cumsum(tables[order])
        whole = longest * np.arange(1, len(order) + 1)
        fits = (used >= whole * (1 - _PADDING_SHARE_MAX)) & (
            whole * block_size <= _GROUP_TOKENS_MAX
        )
        count = max(1, int(np.argmin(fits)) if not fits.all() else len(order))
        yield order[:count]
        order = order[count:]


def masked_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, call: LayerCall
) -> Tensor:
    """[G, Hq, n, D], [G, Hk, L, D], [G, Hk, L, Dv], [G, 1, n, L] bool -> [G, Hq, n, Dv]."""
    if call.softcap is None and call.sinks is None:
        return scaled_dot_product_attention(
            query, key, value, mask, scale=call.scale, enable_gqa=query.shape[1] != key.shape[1]
        )
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = (query @ key.transpose(2, 3)).float() * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if call.sinks is None:
        return scores.softmax(-1).to(value.dtype) @ value
    sinks = call.sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    return weights.to(value.dtype) @ value
