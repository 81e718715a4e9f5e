"""Mixed steps of a fused model, in segments: graphs, with the attention launched between them.

    tokens ─► graph 0 ─► attention 0 ─► graph 1 ─► ... ─► attention L-1 ─► last graph ─► logits

Launching a layer kernel by kernel costs the host 0.4 ms, more than it costs the device to compute
some hundred tokens; a graph costs the host some microseconds. What lies between two attentions
depends on nothing but the number of tokens, so that few graphs serve all mixed steps: tokens are
padded to a bucket, and copied to where the graphs read them. The attention, which depends on every
row's length, gets the real tokens only. Steps of more tokens than the largest bucket are launched
kernel by kernel; with large models the device computes for longer than that takes.
"""

from bisect import bisect_left
from functools import partial

import torch
from torch import Tensor

from executor_svc.cuda.fused import Activations, CachedAttention, FusedModel, Tokens
from executor_svc.cuda.graphs import Launcher, Work, progress
from executor_svc.cuda.step_kernels import stage_tokens
from executor_svc.kv_cache import KvCache

TOKENS_MAX = 2048
"""Tokens of the largest bucket."""


def token_buckets(tokens_max: int) -> list[int]:
    """Numbers of tokens at which cuBLAS is at its best: between them more is often quicker."""
    largest = min(TOKENS_MAX, tokens_max)
    sizes = [16, 32, 48, 64, 96, 128, 160, 192, 256, 320, *range(384, largest, 128)]
    return [size for size in sizes if size < largest] + [largest]


class SegmentedModel:
    """Fills `logits` [rows_max, vocab] for steps of up to `tokens_max` tokens."""

    def __init__(
        self,
        fused: FusedModel,
        cache: KvCache,
        launcher: Launcher,
        logits: Tensor,
        tokens_max: int,
    ) -> None:
        self._fused = fused
        self._cache = cache
        self._launcher = launcher
        self._logits = logits
        self._buckets = token_buckets(tokens_max)
        self.tokens_max = self._buckets[-1]
        # Finite numbers to begin with: nobody reads what padding becomes, but its KV is written.
        self._crossing = Activations(*(t.zero_() for t in fused.activations(self.tokens_max)))
        zeros = partial(torch.zeros, device=logits.device)
        self._tokens = Tokens(*zeros(3, self.tokens_max, dtype=torch.int32))
        self._keep = zeros(len(logits), dtype=torch.int64)
        self._segments = {bucket: self._cut(bucket) for bucket in self._buckets}

    def forward(
        self, tokens: Tokens, row_ends: Tensor, rows: int, attention: CachedAttention
    ) -> None:
        """The last tokens of R rows end at `row_ends` [R]; `rows`, not less, get logits."""
        count = len(tokens.ids)
        bucket = self._buckets[bisect_left(self._buckets, count)]
        stage_tokens(tokens, self._tokens.first(bucket), self._cache.scrap_slot)
        # What is left of other steps in the rows beyond points at tokens, too.
        torch.sub(row_ends, 1, out=self._keep[: len(row_ends)])
        crossing = self._crossing.first(count)
        for (key, segment), call in zip(self._segments[bucket], self._fused.calls, strict=True):
            self._launcher.run(key, segment)
            attention.attend_cached(crossing.query, call, crossing.attended)
        self._launcher.run(*self._last_segment(rows))

    def prepare(self, row_buckets: list[int]) -> None:
        """Captures all segments."""
        for bucket in progress(self._buckets[::-1], "capturing graphs of mixed steps"):
            nothing = self._tokens.first(0)
            stage_tokens(nothing, self._tokens.first(bucket), self._cache.scrap_slot)
            for segment in self._segments[bucket]:
                self._launcher.prepare(*segment)
        for rows in reversed(row_buckets):
            self._launcher.prepare(*self._last_segment(rows))

    def _cut(self, bucket: int) -> list[Work]:
        """What comes before the attention of each layer."""
        tokens, crossing = self._tokens.first(bucket), self._crossing.first(bucket)
        context = tokens, self._cache, crossing
        between = [
            partial(self._fused.between, layer, *context)
            for layer in range(len(self._fused.calls) - 1)
        ]
        segments = [partial(self._fused.enter, *context), *between]
        return [(("segment", bucket, index), segment) for index, segment in enumerate(segments)]

    def _last_segment(self, rows: int) -> Work:
        leave = partial(self._fused.leave, self._crossing, self._keep[:rows], self._logits[:rows])
        return ("logits", rows), leave
