"""The small operations of a step as Triton kernels, one launch each.

Inside a CUDA graph a tiny kernel costs about a microsecond before it does any work, so what torch
does in five kernels is one here. Every kernel rounds where transformers' own modules round (to the
model's dtype after each of their operations), so that a fused and an unfused model differ only by
their matrix products.

A matrix product may come in parts [P, T, N] that are still to be added up (see products.py); P is 1
for a whole one. Whoever reads it first adds the parts, in float32, which spares a kernel.

A kernel may be launched before its predecessor has ended (programmatic dependent launch): its
programs are set up and wait in `gdc_wait` for the predecessor's results. `gdc_launch_dependents`
allows the same to the successor.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@lru_cache
def early_launch(device: torch.device) -> bool:
    """Whether the device can launch a kernel before its predecessor has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def _add_parts(source, part_stride, keep, PARTS: tl.constexpr, dtype: tl.constexpr):
    """The product at `source`, rounded to `dtype` as the product itself would have been."""
    total = tl.load(source, mask=keep, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(source + part * part_stride, mask=keep, other=0.0).to(tl.float32)
    return total.to(dtype)


# --- the norms ------------------------------------------------------------------------------------


@triton.jit
def _normalise(x, weight, out, row, columns, keep, N, eps, dtype: tl.constexpr):
    """out[row] = weight * rms_norm(x); x in float32."""
    scale = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
    w = tl.load(weight + columns, mask=keep, other=0.0)
    normed = (x * scale).to(dtype).to(tl.float32) * w.to(tl.float32)
    tl.store(out + row * N + columns, normed.to(dtype), mask=keep)


@triton.jit
def _embed_norm(token_ids, table, weight, residual, out, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    keep = columns < N
    token = tl.load(token_ids + row).to(tl.int64)
    x = tl.load(table + token * N + columns, mask=keep, other=0.0)
    tl.store(residual + row * N + columns, x, mask=keep)
    _normalise(x.to(tl.float32), weight, out, row, columns, keep, N, eps, out.dtype.element_ty)


@triton.jit(do_not_specialize=["part_stride"])
def _add_norm(
    x, residual, weight, out, part_stride, N, eps,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    keep = columns < N
    at = row * N + columns
    dtype: tl.constexpr = out.dtype.element_ty
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    a = _add_parts(x + at, part_stride, keep, PARTS, dtype)
    b = tl.load(residual + at, mask=keep, other=0.0)
    summed = (a.to(tl.float32) + b.to(tl.float32)).to(dtype)
    tl.store(residual + at, summed, mask=keep)
    _normalise(summed.to(tl.float32), weight, out, row, columns, keep, N, eps, dtype)


def _norm_warps(width: int) -> int:
    return 4 if width <= 1024 else 8 if width <= 4096 else 16


def embed_norm(
    token_ids: Tensor, table: Tensor, weight: Tensor, eps: float, residual: Tensor
) -> Tensor:
    """residual [T, N] becomes the embeddings of token_ids [T]; returns their first norm."""
    rows, width = residual.shape
    out = torch.empty_like(residual)
    _embed_norm[(rows,)](
        token_ids, table, weight, residual, out, width, eps,
        BLOCK=triton.next_power_of_2(width), num_warps=_norm_warps(width),
    )  # fmt: skip
    return out


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [T, N] += x [P, T, N], in place; returns rms_norm(residual) * weight."""
    parts, rows, width = x.shape
    out = torch.empty_like(residual)
    early = early_launch(x.device)
    _add_norm[(rows,)](
        x, residual, weight, out, rows * width, width, eps,
        BLOCK=triton.next_power_of_2(width), PARTS=parts, EARLY=early, launch_pdl=early,
        num_warps=_norm_warps(width),
    )  # fmt: skip
    return out


# --- rotary positions and the KV write ------------------------------------------------------------


@triton.jit
def _head_norm(low, high, weight, half, D, eps, dtype: tl.constexpr):
    """The per-head RMS norm that some families apply to queries and keys."""
    low32, high32 = low.to(tl.float32), high.to(tl.float32)
    scale = tl.rsqrt((tl.sum(low32 * low32, 1) + tl.sum(high32 * high32, 1)) / D + eps)[:, None]
    w_low = tl.load(weight + half)[None, :].to(tl.float32)
    w_high = tl.load(weight + D // 2 + half)[None, :].to(tl.float32)
    low = ((low32 * scale).to(dtype).to(tl.float32) * w_low).to(dtype)
    high = ((high32 * scale).to(dtype).to(tl.float32) * w_high).to(dtype)
    return low, high


@triton.jit(do_not_specialize=["part_stride"])
def _rope_write(
    qkv, bias, query, positions, kv_slots, cosine, sine, key_cache, value_cache, q_weight, k_weight,
    eps, part_stride,
    Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, BIAS: tl.constexpr,
    HEAD_NORM: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program for HEADS heads of one token."""
    GROUPS: tl.constexpr = (Q + 2 * K) // HEADS
    dtype: tl.constexpr = query.dtype.element_ty
    token = (tl.program_id(0) // GROUPS).to(tl.int64)
    head = (tl.program_id(0) % GROUPS) * HEADS
    half = tl.arange(0, D // 2)
    inside = tl.arange(0, HEADS)[:, None] * D + half[None, :]
    slot = tl.load(kv_slots + token).to(tl.int64) * (K * D)
    position = tl.load(positions + token).to(tl.int64)
    c = tl.load(cosine + position * (D // 2) + half)[None, :].to(tl.float32)
    s = tl.load(sine + position * (D // 2) + half)[None, :].to(tl.float32)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    source = qkv + token * ((Q + 2 * K) * D) + head * D + inside
    low = _add_parts(source, part_stride, inside >= 0, PARTS, dtype)
    high = _add_parts(source + D // 2, part_stride, inside >= 0, PARTS, dtype)
    if BIAS:
        b = bias + head * D + inside
        low = (low.to(tl.float32) + tl.load(b).to(tl.float32)).to(dtype)
        high = (high.to(tl.float32) + tl.load(b + D // 2).to(tl.float32)).to(dtype)
    if head >= Q + K:
        target = value_cache + slot + (head - Q - K) * D + inside
        tl.store(target, low)
        tl.store(target + D // 2, high)
        return
    is_key = head >= Q
    if HEAD_NORM:
        weight = k_weight if is_key else q_weight
        low, high = _head_norm(low, high, weight, half, D, eps, dtype)
    low32, high32 = low.to(tl.float32), high.to(tl.float32)
    new_low = (low32 * c).to(dtype).to(tl.float32) + (-high32 * s).to(dtype).to(tl.float32)
    new_high = (high32 * c).to(dtype).to(tl.float32) + (low32 * s).to(dtype).to(tl.float32)
    if is_key:
        target = key_cache + slot + (head - Q) * D + inside
    else:
        target = query + token * (Q * D) + head * D + inside
    tl.store(target, new_low.to(dtype))
    tl.store(target + D // 2, new_high.to(dtype))


def heads_per_program(q_heads: int, kv_heads: int) -> int:
    """The largest power of two up to 8 that divides both head counts."""
    return next(n for n in (8, 4, 2, 1) if q_heads % n == 0 and kv_heads % n == 0)


def rope_write(
    qkv: Tensor,
    bias: Tensor | None,
    positions: Tensor,
    kv_slots: Tensor,
    rope: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
    head_norms: tuple[Tensor, Tensor, float] | None,
    query: Tensor,
) -> None:
    """Rotates queries and keys; keys and values go to the cache, queries to `query` [T, Q, D].

    qkv [P, T, (Q + 2K) * D]; positions, kv_slots [T]; rope: cosine and sine [positions, D/2];
    cache: keys and values [blocks, block_size, K, D].
    """
    keys, values = cache
    parts, tokens, width = qkv.shape
    kv_heads, dim = keys.shape[2:]
    q_heads = width // dim - 2 * kv_heads
    heads = heads_per_program(q_heads, kv_heads)
    q_weight, k_weight, eps = head_norms or (query, query, 0.0)
    early = early_launch(qkv.device)
    _rope_write[(tokens * (q_heads + 2 * kv_heads) // heads,)](
        qkv, query if bias is None else bias, query, positions, kv_slots, *rope, keys, values,
        q_weight, k_weight, eps, tokens * width,
        Q=q_heads, K=kv_heads, D=dim, HEADS=heads, BIAS=bias is not None,
        HEAD_NORM=head_norms is not None, PARTS=parts, EARLY=early, launch_pdl=early,
        num_warps=2,
        # A product that is fused with the sum after it is not rounded where transformers rounds.
        enable_fp_fusion=False,
    )  # fmt: skip


# --- the gated activation -------------------------------------------------------------------------


@triton.jit(do_not_specialize=["part_stride"])
def _swiglu(
    gate_up, out, part_stride, width, BLOCK: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = columns < width
    dtype: tl.constexpr = out.dtype.element_ty
    source = gate_up + row * 2 * width + columns
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    gate = _add_parts(source, part_stride, keep, PARTS, dtype).to(tl.float32)
    up = _add_parts(source + width, part_stride, keep, PARTS, dtype).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out + row * width + columns, (active * up).to(dtype), mask=keep)


def swiglu(gate_up: Tensor, dtype: torch.dtype) -> Tensor:
    """silu(gate) * up of gate_up [P, T, 2N], as [T, N]."""
    parts, rows, width = gate_up.shape[0], gate_up.shape[1], gate_up.shape[2] // 2
    out = torch.empty(rows, width, dtype=dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(width))
    early = early_launch(out.device)
    _swiglu[(triton.cdiv(width, block), rows)](
        gate_up, out, rows * 2 * width, width,
        BLOCK=block, PARTS=parts, EARLY=early, launch_pdl=early, num_warps=4,
    )  # fmt: skip
    return out
