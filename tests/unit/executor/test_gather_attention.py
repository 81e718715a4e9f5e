"""Attention by gathering equals plain attention over each sequence, however rows are batched."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from executor_svc.attention import LayerCall, LayerShape
from executor_svc.gather_attention import GatherAttention, _groups
from executor_svc.kv_cache import KvCache, block_bytes
from svc_wire.frames import Int32s

pytestmark = pytest.mark.model

BLOCK_SIZE = 4
SHAPE = LayerShape(query_heads=6, kv_heads=2, key_dim=8, value_dim=5)


@dataclass(frozen=True)
class Step:
    """The rows of one step, as numpy arrays, and the kv_slots of its tokens."""

    query_indptr: Int32s
    block_indptr: Int32s
    block_ids: Int32s
    positions: Int32s
    kv_slots: Tensor


def make_step(tables: list[Int32s], parts: list[tuple[int, int, int]]) -> Step:
    """`parts` are (sequence, start, stop)."""
    used = [tables[s][: -(-stop // BLOCK_SIZE)] for s, _, stop in parts]
    positions = [np.arange(start, stop, dtype=np.int32) for _, start, stop in parts]
    slots = [
        table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
        for table, p in zip(used, positions, strict=True)
    ]
    return Step(
        np.cumsum([0, *map(len, positions)], dtype=np.int32),
        np.cumsum([0, *map(len, used)], dtype=np.int32),
        np.concatenate(used),
        np.concatenate(positions),
        torch.from_numpy(np.concatenate(slots)).long(),
    )


def plain(query: Tensor, key: Tensor, value: Tensor, start: int, call: LayerCall) -> Tensor:
    """[n, Hq, D], [L, Hk, D], [L, Hk, Dv] -> [n, Hq, Dv]; loops over queries and heads."""
    share = query.shape[1] // key.shape[1]
    out = torch.empty(query.shape[0], query.shape[1], value.shape[2])
    for i in range(query.shape[0]):
        first = 0 if call.window is None else max(0, start + i + 1 - call.window)
        seen = slice(first, start + i + 1)
        for h in range(query.shape[1]):
            scores = key[seen, h // share] @ query[i, h] * call.scale
            if call.softcap is not None:
                scores = call.softcap * torch.tanh(scores / call.softcap)
            if call.sinks is not None:
                scores = torch.cat([scores, call.sinks[h : h + 1]])
            weights = scores.softmax(0)[: seen.stop - seen.start]
            out[i, h] = weights @ value[seen, h // share]
    return out


CALLS = [
    LayerCall(0, 0.3, None, None, None),
    LayerCall(0, 0.3, 5, None, None),
    LayerCall(0, 0.3, None, 2.0, None),
    LayerCall(0, 0.3, 5, None, torch.linspace(-1, 2, SHAPE.query_heads)),
]


@pytest.mark.parametrize("call", CALLS, ids=["full", "window", "softcap", "window_sinks"])
@pytest.mark.parametrize("seed", range(3))
def test_equals_plain_attention(call: LayerCall, seed: int) -> None:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    lengths = [rng.randint(1, 60) for _ in range(7)]
    counts = [-(-n // BLOCK_SIZE) for n in lengths]
    ids = rng.sample(range(sum(counts) + 5), sum(counts))
    tables = [np.array([ids.pop() for _ in range(c)], np.int32) for c in counts]
    cache = KvCache.allocate(
        [SHAPE], sum(counts) + 5, BLOCK_SIZE, torch.float32, torch.device("cpu")
    )
    cache.keys[0].fill_(float("nan"))  # nothing may be read that was not written
    cache.values[0].fill_(float("nan"))
    attention = GatherAttention(cache)
    query, key = (
        [torch.randn(n, heads, SHAPE.key_dim, generator=generator) for n in lengths]
        for heads in (SHAPE.query_heads, SHAPE.kv_heads)
    )
    value = [torch.randn(n, SHAPE.kv_heads, SHAPE.value_dim, generator=generator) for n in lengths]
    done = [0] * len(lengths)
    while live := [s for s, n in enumerate(lengths) if done[s] < n]:
        chosen = sorted(rng.sample(live, rng.randint(1, len(live))))
        sizes = [min(lengths[s] - done[s], rng.choice([1, 1, 3, 9])) for s in chosen]
        parts = [(s, done[s], done[s] + n) for s, n in zip(chosen, sizes, strict=True)]
        step = make_step(tables, parts)
        attention.begin(step, step.kv_slots)
        q, k, v = (torch.cat([x[s][a:b] for s, a, b in parts]) for x in (query, key, value))
        out = attention.attend(q, k, v, call)
        for (s, a, b), found in zip(parts, torch.split(out, sizes), strict=True):
            expected = plain(query[s][a:b], key[s][:b], value[s][:b], a, call)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            done[s] = b


def test_groups_bound_padding_and_memory() -> None:
    rng = np.random.default_rng(0)
    tables = rng.integers(1, 400, 50).astype(np.int32)
    rows = np.flatnonzero(rng.random(50) < 0.8).astype(np.int32)
    groups = list(_groups(rows, tables, block_size=16))
    assert sorted(np.concatenate(groups).tolist()) == rows.tolist()
    assert len(groups) > 1
    for group in groups:
        whole = len(group) * int(tables[group].max())
        assert whole * 16 <= 1 << 16 or len(group) == 1
        assert tables[group].sum() >= 0.75 * whole
        assert group.tolist() == sorted(group.tolist())


def test_rows_of_equal_length_are_one_group() -> None:
    tables = np.full(8, 9, np.int32)
    assert len(list(_groups(np.arange(8, dtype=np.int32), tables, 16))) == 1


def test_the_cache_has_a_scrap_block_and_the_shapes_of_its_layers() -> None:
    layers = [SHAPE, LayerShape(4, 4, 16, 16)]
    cache = KvCache.allocate(layers, 3, BLOCK_SIZE, torch.bfloat16, torch.device("cpu"))
    assert cache.scrap_slot == 12
    assert [tuple(t.shape) for t in cache.keys] == [(4, 4, 2, 8), (4, 4, 4, 16)]
    assert [tuple(t.shape) for t in cache.values] == [(4, 4, 2, 5), (4, 4, 4, 16)]
    assert [tuple(t.shape) for t in cache.flat(0)] == [(16, 2, 8), (16, 2, 5)]
    assert block_bytes(layers, BLOCK_SIZE, torch.bfloat16) == 2 * 4 * (2 * 13 + 4 * 32)
