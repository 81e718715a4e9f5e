"""Attention over the paged KV cache in Triton: the portable backend, and the one for odd families.

One kernel serves prefill and decode. The query heads that share a KV head are packed with the
tokens into one tile of BLOCK_M lines, so that every key is loaded once for all of them:

    line i of tile t  =  token t * TOKENS + i // GROUP of the row, query head i % GROUP of the group

Rows of a decode step are short of parallel work, so their keys may be cut into SPLITS parts; a
second kernel joins the parts. Nothing depends on the host: lengths are read on the device, so a
captured launch serves every later step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from executor_svc.attention import LayerCall
from executor_svc.cuda.kernels import early_launch

_LOG2E = tl.constexpr(1.4426950408889634)
_SPLITS_MAX = 16


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Where each of R rows has its queries and its keys; on the device."""

    query_indptr: Tensor  # [R + 1]
    row_stop: Tensor  # [R] keys of the row
    block_indptr: Tensor  # [R + 1]
    block_ids: Tensor


@triton.jit(do_not_specialize=["tokens_all"])
def _attend(
    query, key_cache, value_cache, query_indptr, row_stop, block_indptr, block_ids,
    sinks, out, part_out, part_max, part_sum,
    scale, softcap, window, query_stride, q_heads, tokens_all,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    SPLITS: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    tile = tl.program_id(2) // SPLITS
    split = tl.program_id(2) % SPLITS
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    kv_heads = q_heads // GROUP
    first = tl.load(query_indptr + row)
    count = tl.load(query_indptr + row + 1) - first
    if tile * TOKENS >= count:
        return
    start = tl.load(row_stop + row) - count
    line = tl.arange(0, BLOCK_M)
    token = tile * TOKENS + line // GROUP
    head = kv_head * GROUP + line % GROUP
    real = (token < count) & (line < TOKENS * GROUP)
    position = start + token
    d, dv = tl.arange(0, PAD_D), tl.arange(0, PAD_DV)
    at = (first + token).to(tl.int64)
    if EARLY:
        gdc_launch_dependents()
        # Lengths and tables were there long ago; queries and keys are the predecessor's.
        gdc_wait()
    q = tl.load(
        query + at[:, None] * query_stride + head[:, None] * D + d[None, :],
        mask=real[:, None] & (d < D)[None, :],
        other=0.0,
    )
    # Keys of this tile: [low:high), of which this program takes [begin:end).
    high = start + tl.minimum((tile + 1) * TOKENS, count)
    low = 0
    if WINDOW:
        low = tl.maximum(0, start + tile * TOKENS - window + 1) // BLOCK_N * BLOCK_N
    part = tl.cdiv(tl.cdiv(high - low, BLOCK_N), SPLITS) * BLOCK_N
    begin = low + split * part
    end = tl.minimum(begin + part, high)
    table = block_ids + tl.load(block_indptr + row)
    largest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, PAD_DV], tl.float32)
    for n in range(begin, end, BLOCK_N):
        where = n + tl.arange(0, BLOCK_N)
        inside = where < end
        block = tl.load(table + where // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slot = (block * BLOCK_SIZE + where % BLOCK_SIZE) * kv_heads + kv_head
        k = tl.load(
            key_cache + slot[:, None] * D + d[None, :],
            mask=inside[:, None] & (d < D)[None, :],
            other=0.0,
        )
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if SOFTCAP:
            # tanh(x) by exp, which Triton has on every target.
            bent = 1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0)
            scores = softcap * bent
        sees = inside[None, :] & (where[None, :] <= position[:, None])
        if WINDOW:
            sees = sees & (where[None, :] > position[:, None] - window)
        scores = tl.where(sees, scores * _LOG2E, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A line that has seen nothing yet must not become NaN.
        base = tl.where(new_largest == -float("inf"), 0.0, new_largest)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(largest - base)
        total = total * fade + tl.sum(weights, 1)
        v = tl.load(
            value_cache + slot[:, None] * DV + dv[None, :],
            mask=inside[:, None] & (dv < DV)[None, :],
            other=0.0,
        )
        acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = new_largest
    if SINKS and split == 0:
        sink = tl.load(sinks + head).to(tl.float32) * _LOG2E
        new_largest = tl.maximum(largest, sink)
        fade = tl.exp2(largest - new_largest)
        total = total * fade + tl.exp2(sink - new_largest)
        acc = acc * fade[:, None]
        largest = new_largest
    keep = real[:, None] & (dv < DV)[None, :]
    if SPLITS == 1:
        # A padding row has no keys of its own; it must still not divide by zero.
        share = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        target = out + (at * q_heads + head)[:, None] * DV + dv[None, :]
        tl.store(target, share.to(out.dtype.element_ty), mask=keep)
    else:
        entry = (split * tokens_all + at) * q_heads + head
        tl.store(part_out + entry[:, None] * DV + dv[None, :], acc, mask=keep)
        tl.store(part_max + entry, largest, mask=real)
        tl.store(part_sum + entry, total, mask=real)


@triton.jit(do_not_specialize=["entries"])
def _join(
    part_out, part_max, part_sum, out, entries,
    DV: tl.constexpr, PAD_DV: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program an entry (token, head): the weighted mean of its parts."""
    entry = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    dv = tl.arange(0, PAD_DV)
    at = split * entries + entry
    if EARLY:
        gdc_wait()
    largest = tl.load(part_max + at)
    top = tl.max(largest, 0)
    weight = tl.exp2(largest - tl.where(top == -float("inf"), 0.0, top))
    total = tl.sum(tl.load(part_sum + at) * weight, 0)
    parts = tl.load(part_out + at[:, None] * DV + dv[None, :], mask=(dv < DV)[None, :], other=0.0)
    share = tl.sum(parts * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + entry * DV + dv, share.to(out.dtype.element_ty), mask=dv < DV)


def decode_splits(rows: int, kv_heads: int, dim: int, processors: int) -> int:
    """Parts that keys are cut into, so that a decode step of so many rows fills the device."""
    per_processor = 4 if dim <= 64 else 2  # programs that run side by side
    wanted = max(1, per_processor * processors // (rows * kv_heads))
    return min(_SPLITS_MAX, 1 << (wanted.bit_length() - 1))


def paged_attention(
    query: Tensor,
    cache: tuple[Tensor, Tensor],
    tables: Tables,
    call: LayerCall,
    *,
    rows: int,
    longest: int,
    splits: int,
    out: Tensor,
) -> None:
    """Attends with query [T, Hq, D] over keys and values [blocks, block_size, Hk, D or Dv].

    The cache already holds this step's own keys. `longest` bounds the tokens of a row. The result
    goes to `out` [T, Hq, Dv].
    """
    keys, values = cache
    tokens, q_heads, dim = query.shape
    block_size, kv_heads, value_dim = values.shape[1:]
    group = q_heads // kv_heads
    assert query.stride()[1:] == (dim, 1)
    tiling = _tiling(group, max(dim, value_dim), longest, rows * kv_heads, splits)
    tiles = triton.cdiv(longest, tiling.block_m // group)
    parts, sums = out, (out, out)  # of no use where nothing is split
    if splits > 1:
        entries = splits * tokens * q_heads
        parts = torch.empty(entries, value_dim, dtype=torch.float32, device=query.device)
        largest, total = torch.empty(2, entries, dtype=torch.float32, device=query.device)
        sums = largest, total
    pad = triton.next_power_of_2(value_dim)
    early = early_launch(query.device)
    _attend[(rows, kv_heads, tiles * splits)](
        query, keys, values, tables.query_indptr, tables.row_stop, tables.block_indptr,
        tables.block_ids, query if call.sinks is None else call.sinks, out, parts, sums[0], sums[1],
        call.scale, call.softcap or 0.0, call.window or 0, query.stride(0), q_heads, tokens,
        GROUP=group, BLOCK_M=tiling.block_m, BLOCK_N=tiling.block_n, BLOCK_SIZE=block_size,
        D=dim, DV=value_dim, PAD_D=triton.next_power_of_2(dim), PAD_DV=pad, SPLITS=splits,
        WINDOW=call.window is not None, SOFTCAP=call.softcap is not None,
        SINKS=call.sinks is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        EARLY=early, launch_pdl=early, num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    if splits > 1:
        _join[(tokens * q_heads,)](
            parts, sums[0], sums[1], out, tokens * q_heads,
            DV=value_dim, PAD_DV=pad, SPLITS=splits, EARLY=early, launch_pdl=early, num_warps=1,
        )  # fmt: skip


class _Tiling(NamedTuple):
    block_m: int
    block_n: int
    warps: int
    stages: int


def _tiling(group: int, dim: int, longest: int, pairs: int, splits: int) -> _Tiling:
    """Tile sizes as measured on an H200; `pairs` counts (row, KV head)."""
    least = triton.next_power_of_2(max(16, group))
    if longest > 1:
        return _Tiling(max(64, least), 32 if dim > 128 else 64, 4, 2)
    if dim > 128:
        return _Tiling(least, 32, 4, 2)
    if dim > 64 and splits == 1 and pairs <= 264:
        return _Tiling(
            least, 128, 8, 3
        )  # a program has its processor to half: more loads in flight
    if dim > 64 and splits == 1 and pairs <= 1024:
        return _Tiling(least, 64, 4, 3)
    return _Tiling(least, 128, 4, 3)
