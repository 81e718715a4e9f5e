"""Penalties on the device: what a step with them does beside all others.

    carry-over ─► forward ─► join_histories ─► penalise ─► sample ...

The cells are those of executor_svc.penalties. Launched only for steps in which some row has
RowFlag.PENALISED; the rows without it, and those past the plan's, touch no cell.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor_svc import penalties
from executor_svc.cuda.device_slot import DeviceSlot
from executor_svc.penalties import Histories
from svc_wire.ids import RowFlag

_PENALISED = tl.constexpr(int(RowFlag.PENALISED))
_PROMPT = tl.constexpr(penalties.PROMPT)
_OUTPUT = tl.constexpr(penalties.OUTPUT)

_TOKENS_BLOCK = 512
_VOCAB_BLOCK = 4096


@triton.jit
def _forget(
    rows_word, row_lane, row_start, row_flags, cells, vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Clears one block of the vocabulary for a row that begins its sequence."""
    row = tl.program_id(0)
    if row >= tl.load(rows_word):
        return
    begins = tl.load(row_start + row) == 0
    if begins & ((tl.load(row_flags + row) & _PENALISED) != 0):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        lane = tl.load(row_lane + row).to(tl.int64)
        nothing = tl.zeros([BLOCK], tl.int32)
        tl.store(cells + lane * vocab + column, nothing, mask=column < vocab)


@triton.jit
def _join(
    rows_word, query_indptr, row_lane, row_flags, prompt_len, token_ids, positions, cells, vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds the input tokens of one row to its lane's cells."""
    row = tl.program_id(0)
    if row >= tl.load(rows_word):
        return
    if (tl.load(row_flags + row) & _PENALISED) == 0:
        return
    mine = cells + tl.load(row_lane + row).to(tl.int64) * vocab
    prompt = tl.load(prompt_len + row)
    end = tl.load(query_indptr + row + 1)
    for begin in range(tl.load(query_indptr + row), end, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        token = tl.load(token_ids + at, mask=at < end, other=0)
        is_output = tl.load(positions + at, mask=at < end, other=0) >= prompt
        once = tl.full([BLOCK], _OUTPUT, tl.int32)
        seen = tl.full([BLOCK], _PROMPT, tl.int32)
        tl.atomic_add(mine + token, once, mask=(at < end) & is_output)
        tl.atomic_or(mine + token, seen, mask=(at < end) & (is_output == 0))


@triton.jit
def _penalise(
    rows_word, row_lane, row_flags, repetition_penalty, presence_penalty, frequency_penalty,
    cells, logits, scores, vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Scores of one block of the vocabulary for one row, in the order of `penalties.penalise`."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = column < vocab
    at = row.to(tl.int64) * vocab + column
    x = tl.load(logits + at, mask=exists, other=0.0).to(tl.float32)
    penalised = (row < tl.load(rows_word)) & ((tl.load(row_flags + row) & _PENALISED) != 0)
    # Rows past the plan's hold what an older plan left: numbers within their bounds.
    lane = tl.load(row_lane + row).to(tl.int64)
    end = tl.where(penalised, vocab, 0)
    cell = tl.load(cells + lane * vocab + column, mask=column < end, other=0)
    factor = tl.load(repetition_penalty + row)
    # As torch divides: `/` would be an approximation here.
    repeated = tl.where(x > 0, tl.div_rn(x, tl.zeros_like(x) + factor), x * factor)
    x = tl.where(cell > 0, repeated, x)
    count = cell // _OUTPUT
    x = x - tl.load(frequency_penalty + row) * count.to(tl.float32)
    x = x - tl.where(count > 0, tl.load(presence_penalty + row), 0.0)
    tl.store(scores + at, x, mask=exists)


def join_histories(slot: DeviceSlot, histories: Histories, bucket: int) -> None:
    """Adds the step's input tokens, carried ones too, to the histories of the penalised rows."""
    cells, vocab = histories.cells, histories.cells.shape[1]
    _forget[(bucket, triton.cdiv(vocab, _VOCAB_BLOCK))](
        slot.rows_word, slot.row_lane, slot.row_start, slot.row_flags, cells, vocab,
        BLOCK=_VOCAB_BLOCK,
    )  # fmt: skip
    _join[(bucket,)](
        slot.rows_word, slot.query_indptr, slot.row_lane, slot.row_flags, slot.prompt_len,
        slot.token_ids, slot.positions, cells, vocab, BLOCK=_TOKENS_BLOCK,
    )  # fmt: skip


def penalise(logits: Tensor, slot: DeviceSlot, histories: Histories) -> Tensor:
    """Scores in float32 [B, V] from logits [B, V], which stay as they are."""
    bucket, vocab = logits.shape
    scores = torch.empty(bucket, vocab, dtype=torch.float32, device=logits.device)
    _penalise[(bucket, triton.cdiv(vocab, _VOCAB_BLOCK))](
        slot.rows_word, slot.row_lane, slot.row_flags, slot.repetition_penalty,
        slot.presence_penalty, slot.frequency_penalty, histories.cells, logits, scores, vocab,
        BLOCK=_VOCAB_BLOCK,
    )  # fmt: skip
    return scores
