"""Attention by gathering: plain torch, any device, made for the CPU.

KV is written by slot mapping. Rows with one token (decode) are attended in groups of similar
length: the blocks of a group are gathered into one padded tensor, and one product serves all its
rows. Rows with several tokens (prefill chunks) are attended one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from executor_svc.attention import LayerCall
from executor_svc.kv_cache import KvCache
from svc_wire.frames import Int32s

_PADDING_SHARE_MAX = 0.25
"""Most of a group's gathered blocks that may be padding."""
_GROUP_TOKENS_MAX = 1 << 16
"""Most tokens that are gathered at once; bounds the memory of a step."""


class Rows(Protocol):
    """The part of a BatchPlan that attention needs."""

    @property
    def query_indptr(self) -> Int32s: ...
    @property
    def block_indptr(self) -> Int32s: ...
    @property
    def block_ids(self) -> Int32s: ...
    @property
    def positions(self) -> Int32s: ...


@dataclass(slots=True, eq=False)
class _Piece:
    """G rows of n tokens each whose KV is gathered together, from m blocks a row."""

    tokens: Tensor | slice
    """Where the rows' tokens are among the step's T tokens; G * n of them."""
    rows: int
    blocks: Tensor  # [G * m] block ids; padding is the scrap block
    unused: Tensor  # [U] where the gathered G * length tokens are beyond their row's end
    positions: Tensor  # [G, n] of the queries
    length: int  # m * block_size
    _biases: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)

    def bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[G, 1, n, length]: 0 for the keys a query sees, -inf for others. Made once a step."""
        found = self._biases.get((window, dtype))
        if found is None:
            key = torch.arange(self.length, device=self.positions.device)
            query = self.positions[:, None, :, None]
            hidden = key > query
            if window is not None:
                hidden |= key <= query - window
            found = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._biases[window, dtype] = found.masked_fill_(hidden, float("-inf"))
        return found


class GatherAttention:
    """The Attention of one KV cache; `begin` tells it the step."""

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._pieces: list[_Piece] = []
        self._kv_slots = torch.empty(0)

    def begin(self, rows: Rows, kv_slots: Tensor) -> None:
        """Prepares for a step. `kv_slots` [T] int64: the plan's, with masked rows sent to scrap."""
        self._kv_slots = kv_slots
        self._pieces = list(self._cut(rows))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        keys, values = self._cache.flat(call.layer)
        keys.index_copy_(0, self._kv_slots, key)
        values.index_copy_(0, self._kv_slots, value)
        if len(self._pieces) == 1:
            return self._attend_piece(self._pieces[0], query, call)
        out = query.new_empty(query.shape[0], query.shape[1], value.shape[2])
        for piece in self._pieces:
            out[piece.tokens] = self._attend_piece(piece, query[piece.tokens], call)
        return out

    def _attend_piece(self, piece: _Piece, query: Tensor, call: LayerCall) -> Tensor:
        """[G * n, Hq, D] -> [G * n, Hq, Dv]."""
        key, value = self._gather(piece, call.layer)
        out = masked_attention(
            query.reshape(piece.rows, -1, *query.shape[1:]).transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            piece.bias(call.window, query.dtype),
            call,
        )
        return out.transpose(1, 2).flatten(0, 1)

    def _gather(self, piece: _Piece, layer: int) -> tuple[Tensor, Tensor]:
        """Keys [G, length, Hk, D] and values [G, length, Hk, Dv] of a piece.

        Zeros beyond the end of a row: what others left there may not be a number, and a weight of 0
        would not make it one.
        """
        gathered = []
        for cache in (self._cache.keys[layer], self._cache.values[layer]):
            blocks = cache.index_select(0, piece.blocks)
            blocks.flatten(0, 1).index_fill_(0, piece.unused, 0.0)
            gathered.append(blocks.view(piece.rows, piece.length, *blocks.shape[2:]))
        return gathered[0], gathered[1]

    def _cut(self, step: Rows) -> Iterator[_Piece]:
        """All rows of the step, each in one piece; decode rows first."""
        lengths, tables = np.diff(step.query_indptr), np.diff(step.block_indptr)
        decode = np.flatnonzero(lengths == 1).astype(np.int32)
        for rows in _groups(decode, tables, self._cache.block_size):
            yield self._piece(step, rows, step.query_indptr[rows], tables)
        for row in np.flatnonzero(lengths > 1):
            first, last = int(step.query_indptr[row]), int(step.query_indptr[row + 1])
            yield self._piece(step, np.array([row]), slice(first, last), tables)

    def _piece(self, step: Rows, rows: Int32s, tokens: Int32s | slice, tables: Int32s) -> _Piece:
        device = self._kv_slots.device
        count = int(tables[rows].max())
        column = np.arange(count)
        inside = column < tables[rows, None]
        entry = np.where(inside, step.block_indptr[rows, None] + column, 0)
        blocks = np.where(inside, step.block_ids[entry], self._cache.num_blocks)
        positions = step.positions[tokens].reshape(len(rows), -1)
        length = count * self._cache.block_size
        unused = np.flatnonzero(np.arange(length) > positions[:, -1:])

        def moved(array: npt.NDArray[np.integer]) -> Tensor:
            return torch.from_numpy(array.astype(np.int64)).to(device)

        return _Piece(
            tokens if isinstance(tokens, slice) else moved(tokens),
            len(rows),
            moved(blocks.reshape(-1)),
            moved(unused),
            moved(positions),
            length,
        )


def _groups(rows: Int32s, tables: Int32s, block_size: int) -> Iterator[Int32s]:
    """Splits `rows` into groups of similar table length, longest first; rows keep their order."""
    order = rows[np.argsort(-tables[rows], kind="stable")]
    while len(order):
        longest = int(tables[order[0]])
        used = np.cumsum(tables[order])
        whole = longest * np.arange(1, len(order) + 1)
        fits = (used >= whole * (1 - _PADDING_SHARE_MAX)) & (
            whole * block_size <= _GROUP_TOKENS_MAX
        )
        count = max(1, int(np.argmin(fits)) if not fits.all() else len(order))
        yield np.sort(order[:count])
        order = order[count:]


def masked_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, call: LayerCall
) -> Tensor:
    """[G, Hq, n, D], [G, Hk, L, D], [G, Hk, L, Dv], [G, 1, n, L] -> [G, Hq, n, Dv]."""
    shape = (*query.shape[:3], value.shape[3])
    if query.shape[2] == 1:
        # The heads that share a KV head become its queries: one pass over its keys for all of them.
        query = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
    if call.softcap is None and call.sinks is None:
        out = scaled_dot_product_attention(
            query, key, value, bias, scale=call.scale, enable_gqa=query.shape[1] != key.shape[1]
        )
    else:
        out = _explicit_attention(query, key, value, bias, call)
    return out.reshape(shape)


def _explicit_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, call: LayerCall
) -> Tensor:
    """The same with a soft cap or sinks, which no fused kernel knows."""
    groups, heads, tokens, _ = query.shape
    share = heads // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = (query @ key.transpose(2, 3)).float() * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = scores + bias
    if call.sinks is None:
        return scores.softmax(-1).to(value.dtype) @ value
    sinks = call.sinks.float().reshape(1, heads, -1, 1).expand(groups, heads, tokens, 1)
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    return weights.to(value.dtype) @ value
