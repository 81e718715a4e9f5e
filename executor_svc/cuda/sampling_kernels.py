"""Drawing tokens in few passes over the scores; the same choice as executor_svc/sampler.py makes.

Filters are thresholds, and a threshold can be found without sorting: scores are scaled so that the
best is 0 and all others are below, which makes the bits of their absolute value (magnitude) an
integer that grows as the score falls. What top_k and then top_p keep is every magnitude up to a
limit, and the limit is found two bits a pass:

    top_k   the largest limit with fewer than k magnitudes below it: the k-th smallest itself
    top_p   the largest limit below which lies less than top_p of the kept probability

Then the scores race with their noise: the largest sum wins. One program searches a row, several
race for it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from executor_svc.sampler import Path, SamplingRows

_INFINITE = tl.constexpr(0x7F800000)
"""The magnitude of minus infinity. Larger ones are no numbers."""
_NO_SCORE = tl.constexpr(0x7FFFFFFF)
_PASSES = tl.constexpr(16)
_SEARCH_BLOCK, _SEARCH_WARPS = 8192, 32
_RACE_BLOCK, _RACE_CHUNK = 1024, 8192
_SCALE_BLOCK = 4096


@triton.jit
def _scaled(scores, best, temperature, where, keep):
    """Scores over the temperature, the best at 0; -inf beyond the row."""
    score = tl.load(scores + where, mask=keep, other=float("-inf")).to(tl.float32)
    return tl.div_rn(score - best, temperature)


@triton.jit
def _magnitude(scaled):
    return scaled.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _measure(scores, best, temperature, out, vocab, BLOCK: tl.constexpr):
    """The magnitudes of a row, for `_limit`."""
    row = tl.program_id(0).to(tl.int64)
    degree = tl.load(temperature + row)
    if degree > 0:
        where = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        keep = where < vocab
        top = tl.load(best + row).to(tl.float32)
        scaled = _scaled(scores + row * vocab, top, degree, where, keep)
        tl.store(out + row * vocab + where, _magnitude(scaled), mask=keep)


@triton.jit
def _weights(magnitude, limit, WEIGHTED: tl.constexpr):
    """What each counts for: its probability (not normalised) up to the limit; or one."""
    if WEIGHTED:
        weight = tl.exp(-magnitude.to(tl.float32, bitcast=True))
        return tl.where(magnitude <= limit, weight, 0.0)
    return tl.where(magnitude <= limit, 1.0, 0.0)


@triton.jit
def _total(magnitudes, limit, vocab, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    found = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, vocab, BLOCK):
        where = begin + tl.arange(0, BLOCK)
        magnitude = tl.load(magnitudes + where, mask=where < vocab, other=_NO_SCORE)
        found += _weights(magnitude, limit, WEIGHTED)
    return tl.sum(found)


@triton.jit
def _search(magnitudes, limit, target, vocab, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """The largest number below which lies less than `target`. Bits 30 to 1 two a pass, then bit 0.

    `target` is at most what all magnitudes weigh, so that it is never above the limit.
    """
    found = 0
    for number in range(_PASSES):
        step = 1 << tl.maximum(29 - 2 * number, 0)
        one = tl.zeros([BLOCK], tl.float32)
        two = tl.zeros([BLOCK], tl.float32)
        three = tl.zeros([BLOCK], tl.float32)
        for begin in range(0, vocab, BLOCK):
            where = begin + tl.arange(0, BLOCK)
            magnitude = tl.load(magnitudes + where, mask=where < vocab, other=_NO_SCORE)
            weight = _weights(magnitude, limit, WEIGHTED)
            one += tl.where(magnitude < found + step, weight, 0.0)
            two += tl.where(magnitude < found + 2 * step, weight, 0.0)
            three += tl.where(magnitude < found + 3 * step, weight, 0.0)
        digits = (tl.sum(one) < target).to(tl.int32)
        digits += (tl.sum(two) < target).to(tl.int32)
        digits += (tl.sum(three) < target).to(tl.int32)
        found += digits * step
    return found


@triton.jit(do_not_specialize=["vocab"])
def _limit(magnitudes, temperature, top_k, top_p, out, vocab, BLOCK: tl.constexpr):
    """The largest magnitude that top_k, then top_p, keep in a row."""
    row = tl.program_id(0).to(tl.int64)
    mine = magnitudes + row * vocab
    draws = tl.load(temperature + row) > 0
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    limit = _INFINITE + 0
    if draws & (k > 0) & (k < vocab):
        limit = _search(mine, limit, k.to(tl.float32), vocab, False, BLOCK)
    if draws & (p < 1):
        wanted = p * _total(mine, limit, vocab, True, BLOCK)
        limit = tl.minimum(limit, _search(mine, limit, wanted, vocab, True, BLOCK))
    tl.store(out + row, limit)


@triton.jit
def _mix(x):
    """As sampler._mix, bit for bit."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x21F0AAAD
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -0x2CA5D269
    return x ^ ((x >> 15) & 0x1FFFF)


@triton.jit
def _noise(row_key, token):
    """As sampler.gumbel_noise, from the same bits."""
    bits = _mix(_mix(token ^ row_key) + row_key)
    fraction = ((bits & 0x7FFFFFFF).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2**-31
    exponential = -libdevice.log1p(-tl.minimum(fraction, 0.9999999403953552))  # 1 - 2**-24
    return -libdevice.log(exponential)


@triton.jit(do_not_specialize=["vocab"])
def _race(
    scores, best, limit, temperature, min_p, seed, position, out_sum, out_token, vocab,
    FILTERED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The winner of a chunk of a row."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    target = row * tl.num_programs(1) + chunk
    degree = tl.load(temperature + row)
    if degree > 0:
        top = tl.load(best + row).to(tl.float32)
        floor = libdevice.log(tl.load(min_p + row))
        whole = tl.load(seed + row)
        row_key = _mix(_mix(whole.to(tl.int32)) ^ (whole >> 32).to(tl.int32))
        row_key = _mix(row_key ^ tl.load(position + row))
        leader = tl.full([BLOCK], float("-inf"), tl.float32)
        token = tl.zeros([BLOCK], tl.int32)
        for begin in range(0, CHUNK, BLOCK):
            where = chunk * CHUNK + begin + tl.arange(0, BLOCK)
            scaled = _scaled(scores + row * vocab, top, degree, where, where < vocab)
            kept = scaled >= floor
            if FILTERED:
                kept = kept & (_magnitude(scaled) <= tl.load(limit + row))
            runner = tl.where(kept, scaled + _noise(row_key, where), float("-inf"))
            ahead = runner > leader
            leader = tl.where(ahead, runner, leader)
            token = tl.where(ahead, where, token)
        winner = tl.max(leader)
        tl.store(out_sum + target, winner)
        tl.store(out_token + target, tl.min(tl.where(leader == winner, token, vocab)))


def draw(scores: Tensor, best: Tensor, rows: SamplingRows, path: Path) -> Tensor:
    """[S] int64 token ids drawn from the filtered distributions of `scores` [S, V].

    `best` [S] is each row's largest score. Rows whose temperature is 0 get anything.
    """
    count, vocab = scores.shape
    filtered = path is Path.FILTERED
    limit = torch.empty(count, dtype=torch.int32, device=scores.device)
    if filtered:
        magnitudes = torch.empty(count, vocab, dtype=torch.int32, device=scores.device)
        _measure[(count, triton.cdiv(vocab, _SCALE_BLOCK))](
            scores, best, rows.temperature, magnitudes, vocab, BLOCK=_SCALE_BLOCK
        )
        _limit[(count,)](
            magnitudes, rows.temperature, rows.top_k, rows.top_p, limit, vocab,
            BLOCK=_SEARCH_BLOCK, num_warps=_SEARCH_WARPS,
        )  # fmt: skip
    chunks = triton.cdiv(vocab, _RACE_CHUNK)
    sums = torch.empty(count, chunks, dtype=torch.float32, device=scores.device)
    tokens = torch.zeros(count, chunks, dtype=torch.int32, device=scores.device)
    _race[(count, chunks)](
        scores, best, limit, rows.temperature, rows.min_p, rows.seed, rows.position, sums, tokens,
        vocab, FILTERED=filtered, CHUNK=_RACE_CHUNK, BLOCK=_RACE_BLOCK,
    )  # fmt: skip
    return tokens.gather(1, sums.argmax(dim=-1, keepdim=True))[:, 0].long()
