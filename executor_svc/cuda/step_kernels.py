"""The first and the last operation of every step: carry-over, and sampling with the finish mask.

They work in place on a slot's copy of the plan and on the lanes, the only state that outlives a
step:

    lane_token   [lanes] int32   the last token that was sampled for the lane
    lane_stopped [lanes] bool    whether that token was one of its row's stop ids

A graph is captured for a bucket of rows, and the plan says how many of them are real; the kernels
read that count on the device. Rows past it are made harmless: token 0 at position 0, KV to the
scrap block, and nothing but that to attend to. Their table entries take the place of the plan's
block copies, which have been enqueued by then.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_svc.cuda.device_slot import DeviceSlot
from executor_svc.slots import Lanes
from svc_wire.ids import NO_TOKEN, STOP_IDS_MAX, RowFlag, RowStatus

_SAMPLES = tl.constexpr(int(RowFlag.SAMPLES))
_CARRY = tl.constexpr(int(RowFlag.CARRY))
_BAN_STOP = tl.constexpr(int(RowFlag.BAN_STOP))
_OK = tl.constexpr(int(RowStatus.OK))
_STOPPED = tl.constexpr(int(RowStatus.STOPPED))
_MASKED = tl.constexpr(int(RowStatus.MASKED))
_ERROR = tl.constexpr(int(RowStatus.ERROR))
_NO_TOKEN = tl.constexpr(NO_TOKEN)
_STOP_IDS = tl.constexpr(STOP_IDS_MAX)

_STAGE_BLOCK = 256
VOCAB_BLOCK = 4096
"""Logits that one program of the first arg-max pass looks at."""


@triton.jit
def _carry_over(
    rows_word, query_indptr, block_indptr, block_ids, row_lane, row_stop, row_flags,
    token_ids, positions, kv_slots, last_page, lane_token, lane_stopped,
    scrap_slot, block_size,
):  # fmt: skip
    """One program a row of the bucket."""
    row = tl.program_id(0)
    rows = tl.load(rows_word)
    if row >= rows:
        tl.store(token_ids + row, 0)
        tl.store(positions + row, 0)
        tl.store(kv_slots + row, scrap_slot)
        tl.store(row_stop + row, 1)
        tl.store(last_page + row, 1)
        tl.store(query_indptr + row + 1, tl.load(query_indptr + rows) + row + 1 - rows)
        entry = tl.load(block_indptr + rows) + row - rows
        tl.store(block_indptr + row + 1, entry + 1)
        # Behind the tables lie numbers of host blocks, of which there may be more than of others.
        tl.store(block_ids + entry, scrap_slot // block_size)
        return
    tl.store(last_page + row, (tl.load(row_stop + row) - 1) % block_size + 1)
    if (tl.load(row_flags + row) & _CARRY) != 0:
        lane = tl.load(row_lane + row)
        last = tl.load(query_indptr + row + 1) - 1
        tl.store(token_ids + last, tl.load(lane_token + lane))
        if tl.load(lane_stopped + lane) != 0:
            for token in range(tl.load(query_indptr + row), last + 1):
                tl.store(kv_slots + token, scrap_slot)


@triton.jit(do_not_specialize=["tokens", "bucket"])
def _stage(
    ids, positions, kv_slots, to_ids, to_positions, to_slots, tokens, bucket, scrap_slot,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real, inside = at < tokens, at < bucket
    tl.store(to_ids + at, tl.load(ids + at, mask=real, other=0), mask=inside)
    tl.store(to_positions + at, tl.load(positions + at, mask=real, other=0), mask=inside)
    slot = tl.load(kv_slots + at, mask=real, other=0)
    tl.store(to_slots + at, tl.where(real, slot, scrap_slot), mask=inside)


@triton.jit
def _largest(
    logits, rows_word, row_flags, stop_ids, best_value, best_index, vocab, blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest logit of each block of the vocabulary; NaN wins, and the last pass sees it."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    if row >= tl.load(rows_word):
        return
    column = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(
        logits + row.to(tl.int64) * vocab + column, mask=column < vocab, other=-float("inf")
    )
    x = x.to(tl.float32)
    broken = tl.sum(((x != x) | (x == float("inf"))).to(tl.int32), 0)
    if (tl.load(row_flags + row) & _BAN_STOP) != 0:
        for i in range(_STOP_IDS):
            banned = tl.load(stop_ids + row * _STOP_IDS + i)
            x = tl.where(column == banned, -float("inf"), x)
    largest = tl.max(x, 0)
    index = tl.min(tl.where(x == largest, column, vocab), 0)
    at = row * blocks + block
    tl.store(best_value + at, tl.where(broken > 0, float("nan"), largest))
    tl.store(best_index + at, index)


@triton.jit
def _finish(
    rows_word, row_lane, row_flags, stop_ids, chosen, best_value, best_index,
    lane_token, lane_stopped, result_token, result_status, vocab, blocks,
    GREEDY: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One program a row: settles its token and its lane."""
    row = tl.program_id(0)
    if row >= tl.load(rows_word):
        return
    flags = tl.load(row_flags + row)
    lane = tl.load(row_lane + row)
    if ((flags & _CARRY) != 0) & (tl.load(lane_stopped + lane) != 0):
        tl.store(result_token + row, _NO_TOKEN)
        tl.store(result_status + row, _MASKED)
        return
    if (flags & _SAMPLES) == 0:
        tl.store(result_token + row, _NO_TOKEN)
        tl.store(result_status + row, _OK)
        return
    if GREEDY:
        at = tl.arange(0, BLOCKS)
        keep = at < blocks
        value = tl.load(best_value + row * blocks + at, mask=keep, other=-float("inf"))
        index = tl.load(best_index + row * blocks + at, mask=keep, other=vocab)
        broken = tl.sum((value != value).to(tl.int32), 0)
        token = tl.min(tl.where(value == tl.max(value, 0), index, vocab), 0)
        nothing = (broken > 0) | (tl.max(value, 0) == -float("inf"))
        token = tl.where(nothing, _NO_TOKEN, token)
    else:
        token = tl.load(chosen + row).to(tl.int32)
    stops = tl.load(stop_ids + row * _STOP_IDS + tl.arange(0, _STOP_IDS))
    # Without a token the row is in error, and its lane must not be carried on either.
    stopped = tl.sum((stops == token).to(tl.int32), 0) > 0
    failed = token == _NO_TOKEN
    tl.store(lane_token + lane, tl.maximum(token, 0))
    tl.store(lane_stopped + lane, (stopped | failed).to(tl.uint8))
    tl.store(result_token + row, token)
    status = tl.where(failed, _ERROR, tl.where(stopped, _STOPPED, _OK))
    tl.store(result_status + row, status)


def argmax_blocks(vocab: int) -> int:
    """Blocks that the vocabulary is cut into for the arg-max."""
    return triton.cdiv(vocab, VOCAB_BLOCK)


def sample_greedy(logits: Tensor, slot: DeviceSlot, lanes: Lanes) -> None:
    """Arg-max of logits [B, V] (first of equals), then the finish mask."""
    bucket, vocab = logits.shape
    blocks = argmax_blocks(vocab)
    value = torch.empty(bucket, blocks, dtype=torch.float32, device=logits.device)
    index = torch.empty(bucket, blocks, dtype=torch.int32, device=logits.device)
    _largest[(bucket, blocks)](
        logits, slot.rows_word, slot.row_flags, slot.stop_ids, value, index, vocab, blocks,
        BLOCK=VOCAB_BLOCK, num_warps=8,
    )  # fmt: skip
    _finish[(bucket,)](
        slot.rows_word, slot.row_lane, slot.row_flags, slot.stop_ids, index, value, index,
        lanes.token, lanes.stopped.view(torch.uint8), *slot.result[:2], vocab, blocks,
        GREEDY=True, BLOCKS=triton.next_power_of_2(blocks), num_warps=1,
    )  # fmt: skip


def settle(chosen: Tensor, slot: DeviceSlot, lanes: Lanes) -> None:
    """The finish mask for tokens chosen [B] (NO_TOKEN: in error) by a sampler."""
    _finish[(len(chosen),)](
        slot.rows_word, slot.row_lane, slot.row_flags, slot.stop_ids, chosen, chosen, chosen,
        lanes.token, lanes.stopped.view(torch.uint8), *slot.result[:2], 0, 1,
        GREEDY=False, BLOCKS=1, num_warps=1,
    )  # fmt: skip


def resolve_carry_over(
    slot: DeviceSlot, lanes: Lanes, bucket: int, scrap_slot: int, block_size: int
) -> None:
    """Fills in what the host could not know, and makes the rows past the plan's harmless."""
    _carry_over[(bucket,)](
        slot.rows_word, slot.query_indptr, slot.block_indptr, slot.block_ids, slot.row_lane,
        slot.row_stop, slot.row_flags, slot.token_ids, slot.positions, slot.kv_slots,
        slot.last_page, lanes.token, lanes.stopped.view(torch.uint8), scrap_slot, block_size,
        num_warps=1,
    )  # fmt: skip


def stage_tokens(
    tokens: tuple[Tensor, Tensor, Tensor], to: tuple[Tensor, Tensor, Tensor], scrap_slot: int
) -> None:
    """Copies ids, positions and kv_slots of T tokens to those of a bucket.

    Padding is token 0 at position 0, and its KV goes to the scrap block.
    """
    bucket = len(to[0])
    _stage[(triton.cdiv(bucket, _STAGE_BLOCK),)](
        *tokens, *to, len(tokens[0]), bucket, scrap_slot, BLOCK=_STAGE_BLOCK, num_warps=2
    )
