"""Choosing tokens on the device: no host sync, no generator state, every row on its own.

A row's token is a pure function of its own logits, parameters, seed and position. Randomness comes
from a counter-based hash of (seed, position, token id), turned into Gumbel noise: the argmax of
log-probability plus Gumbel noise is a draw from the distribution. So a row does not depend on what
else is in its batch, nor on how often the sequence was pre-empted or its executor restarted.

Filters act after temperature, in the order top_k, top_p, min_p. Each is a threshold on the scaled
logits, so that tokens of equal logits stay or go together and no order among them is ever decided.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from svc_wire.frames import BatchPlan
from svc_wire.ids import NO_TOKEN, RowStatus

_NEVER = float("-inf")


Draw = Callable[[Tensor, Tensor, "SamplingRows", "Path"], Tensor]
"""(logits [S, V], largest of each row [S], rows, path): token ids [S], anything for greedy rows."""


class Path(Enum):
    """The least work that serves every row of a batch. Rows get the same token on any path
    that serves them."""

    GREEDY = "greedy"
    NOISE = "noise"
    """Some rows draw; filters are min_p at most."""
    FILTERED = "filtered"
    """Some rows have top_k or top_p, which need the logits sorted."""


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRows:
    """What S sampling rows ask for; tensors on the device."""

    temperature: Tensor  # [S] float32, 0 is greedy
    top_k: Tensor  # [S] int32, 0 is off
    top_p: Tensor  # [S] float32, 1 is off
    min_p: Tensor  # [S] float32, 0 is off
    seed: Tensor  # [S] int64
    position: Tensor  # [S] int32, of the token to be sampled
    stop_ids: Tensor  # [S, STOP_IDS_MAX] int32, padded with NO_TOKEN
    ban_stop: Tensor  # [S] bool


class Sampled(NamedTuple):
    token: Tensor  # [S] int32, NO_TOKEN on error
    status: Tensor  # [S] uint8, RowStatus: OK, STOPPED or ERROR


def choose_path(plan: BatchPlan) -> Path:
    """Looks at the plan on the host, so that the device needs no branch."""
    draws = plan.temperature > 0
    if not draws.any():
        return Path.GREEDY
    filters = (plan.top_k > 0) | (plan.top_p < 1)
    return Path.FILTERED if (draws & filters).any() else Path.NOISE


def sample(logits: Tensor, rows: SamplingRows, path: Path, draw: Draw | None = None) -> Sampled:
    """Samples one token for each row of `logits` [S, V], which is overwritten.

    A row whose logits hold NaN or +inf, or nothing but -inf, gets RowStatus.ERROR. `draw` takes the
    place of this module's own, on a device that has a better one.
    """
    ban_stop_ids(logits, rows.stop_ids, rows.ban_stop)
    best, token = logits.max(dim=-1)
    if path is not Path.GREEDY:
        drawn = (draw or _draw)(logits, best, rows, path)
        token = torch.where(rows.temperature > 0, drawn, token)
    return finish(token.to(torch.int32), torch.isfinite(best), rows.stop_ids)


def finish(token: Tensor, finite: Tensor, stop_ids: Tensor) -> Sampled:
    """Marks rows that sampled a stop id (STOPPED) and rows without finite logits (ERROR)."""
    stopped = (token[:, None] == stop_ids).any(dim=-1)
    status = torch.where(stopped, int(RowStatus.STOPPED), int(RowStatus.OK))
    status = torch.where(finite, status, int(RowStatus.ERROR)).to(torch.uint8)
    return Sampled(torch.where(finite, token, NO_TOKEN), status)


def ban_stop_ids(logits: Tensor, stop_ids: Tensor, ban_stop: Tensor) -> None:
    """Makes the stop ids of the rows in `ban_stop` impossible, in place."""
    banned = ban_stop[:, None] & (stop_ids >= 0)
    ids = stop_ids.clamp(min=0).long()  # padding points at token 0 and must not touch it
    values = torch.where(banned, _NEVER, torch.inf).to(logits.dtype)
    logits.scatter_reduce_(1, ids, values, "amin")


def _draw(logits: Tensor, best: Tensor, rows: SamplingRows, path: Path) -> Tensor:
    """[S] token ids drawn from the filtered distribution; meaningless for greedy rows."""
    temperature = torch.where(rows.temperature > 0, rows.temperature, 1.0)
    # The best becomes 0 first, so that a tiny temperature overflows to -inf and never to +inf.
    scaled = (logits.float() - best.float()[:, None]) / temperature[:, None]
    if path is Path.FILTERED:
        lowest = _lowest_kept(scaled, rows.top_k, rows.top_p)
        scaled = scaled.masked_fill(scaled < lowest[:, None], _NEVER)
    scaled = scaled.masked_fill(scaled < rows.min_p.log()[:, None], _NEVER)
    return (scaled + gumbel_noise(rows.seed, rows.position, logits.shape[1])).argmax(dim=-1)


def _lowest_kept(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """[S] the lowest scaled logit that top_k, then top_p, keep."""
    ordered = scaled.sort(dim=-1, descending=True).values
    vocab = ordered.shape[1]
    k = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab).long()
    kth = ordered.gather(1, k[:, None] - 1)
    probability = ordered.masked_fill(ordered < kth, _NEVER).softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability
    # A row without top_p must keep its last token whatever the rounding of the sum.
    wanted = (before < top_p[:, None]) | (top_p >= 1)[:, None]
    count = (wanted & (ordered >= kth)).sum(dim=-1).clamp(min=1)
    return ordered.gather(1, count[:, None] - 1)[:, 0]


def gumbel_noise(seed: Tensor, position: Tensor, vocab: int) -> Tensor:
    """[S, vocab] float32 Gumbel noise, a pure function of (seed, position, token id)."""
    token = torch.arange(vocab, dtype=torch.int32, device=seed.device)
    low, high = seed.int(), (seed >> 32).int()
    row = _mix(_mix(_mix(low) ^ high) ^ position.int())
    bits = _mix(_mix(token[None, :] ^ row[:, None]) + row[:, None])
    # 31 bits as a fraction in (0, 1). Small fractions are exact where they become large noise.
    fraction = ((bits & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    exponential = -torch.log1p(-fraction.clamp(max=1 - 2.0**-24))
    return -exponential.log()


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32 bits: every input bit sways every output bit. int32 wraps around."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x21F0AAAD
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -0x2CA5D269
    return x ^ ((x >> 15) & 0x1FFFF)
