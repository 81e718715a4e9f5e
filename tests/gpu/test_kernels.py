"""Each kernel against plain torch: bit for bit where it rounds where transformers does."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from executor_svc.attention import LayerCall

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [1, 4])
def test_add_norm_adds_parts_and_residual(dtype: torch.dtype, parts: int) -> None:
    from executor_svc.cuda.kernels import add_norm

    x = randn(parts, 33, 576, dtype=dtype if parts == 1 else torch.float32)
    residual, weight = randn(33, 576, dtype=dtype), randn(576, dtype=dtype)
    expected = residual + x.float().sum(0).to(dtype)
    found = add_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(residual, expected, rtol=1e-2 if parts > 1 else 0, atol=1e-5)
    torch.testing.assert_close(found, norm(residual, weight, 1e-5), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_norm(dtype: torch.dtype) -> None:
    from executor_svc.cuda.kernels import embed_norm

    table, weight = randn(50, 576, dtype=dtype), randn(576, dtype=dtype)
    ids = torch.randint(0, 50, (21,), device="cuda", dtype=torch.int32)
    residual = torch.empty(21, 576, device="cuda", dtype=dtype)
    found = embed_norm(ids, table, weight, 1e-5, residual)
    assert torch.equal(residual, table[ids.long()])
    torch.testing.assert_close(found, norm(residual, weight, 1e-5), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(dtype: torch.dtype) -> None:
    from executor_svc.cuda.kernels import swiglu

    gate_up = randn(1, 9, 2 * 1536, dtype=dtype)
    gate, up = gate_up[0].chunk(2, -1)
    torch.testing.assert_close(swiglu(gate_up, dtype), silu(gate) * up, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("q_heads", "kv_heads", "dim"), [(32, 8, 128), (9, 3, 64), (4, 4, 16)])
def test_rope_write_rotates_and_fills_the_cache(
    dtype: torch.dtype, q_heads: int, kv_heads: int, dim: int
) -> None:
    from executor_svc.cuda.kernels import rope_write

    tokens, half = 17, dim // 2
    qkv = randn(1, tokens, (q_heads + 2 * kv_heads) * dim, dtype=dtype)
    position = torch.randint(0, 90, (tokens,), device="cuda", dtype=torch.int32)
    kv_slots = torch.randperm(32, device="cuda")[:tokens].int()
    angle = torch.rand(90, half, device="cuda") * 6
    tables = angle.cos().to(dtype), angle.sin().to(dtype)
    keys = torch.zeros(4, 8, kv_heads, dim, device="cuda", dtype=dtype)
    values = torch.zeros_like(keys)
    query = torch.empty(tokens, q_heads, dim, device="cuda", dtype=dtype)
    rope_write(qkv, None, position, kv_slots, tables, (keys, values), None, query)

    heads = qkv[0].view(tokens, -1, dim)
    cosine, sine = (t[position.long()].repeat(1, 2)[:, None] for t in tables)
    turned = heads * cosine + torch.cat([-heads[..., half:], heads[..., :half]], -1) * sine
    written = kv_slots.long()
    assert torch.equal(query, turned[:, :q_heads])
    assert torch.equal(keys.flatten(0, 1)[written], turned[:, q_heads : q_heads + kv_heads])
    assert torch.equal(values.flatten(0, 1)[written], heads[:, q_heads + kv_heads :])
    assert keys.count_nonzero() <= tokens * kv_heads * dim, "nothing else is written"


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 32, 33, 64, 65])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(6144, 4096), (4096, 4096), (2048, 8192), (28672, 4096)]
)
def test_products_with_few_rows(rows: int, outputs: int, inputs: int) -> None:
    from executor_svc.cuda.products import Weight

    x = randn(rows, inputs, dtype=torch.bfloat16)
    weight = randn(outputs, inputs, dtype=torch.bfloat16)
    found = Weight(weight).product(x).double().sum(0)
    expected = linear(x.double(), weight.double())
    assert (found - expected).norm() / expected.norm() < 3e-3


def attend_plainly(
    query: Tensor, keys: Tensor, values: Tensor, starts: list[int], stops: list[int],
    tables: list[Tensor], call: LayerCall,
) -> Tensor:  # fmt: skip
    """Row by row, in float64."""
    out, at = [], 0
    group = query.shape[1] // keys.shape[2]
    for start, stop, table in zip(starts, stops, tables, strict=True):
        q = query[at : at + stop - start].double().transpose(0, 1)
        at += stop - start
        k, v = (
            c[table].flatten(0, 1)[:stop].double().repeat_interleave(group, 1).transpose(0, 1)
            for c in (keys, values)
        )
        scores = q @ k.transpose(1, 2) * call.scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        position = torch.arange(start, stop, device="cuda")[:, None]
        key = torch.arange(stop, device="cuda")
        hidden = key > position
        if call.window is not None:
            hidden |= key <= position - call.window
        scores = scores.masked_fill(hidden, float("-inf"))
        if call.sinks is not None:
            sinks = call.sinks.double()[:, None, None].expand(*scores.shape[:2], 1)
            weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        out.append((weights @ v).transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("kind", ["plain", "window", "softcap", "sinks"])
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "dim"), [(32, 8, 128), (32, 8, 64), (9, 3, 64), (4, 4, 256), (4, 2, 16)]
)
@pytest.mark.parametrize("splits", [0, 1, 2, 8])
def test_paged_attention(kind: str, q_heads: int, kv_heads: int, dim: int, splits: int) -> None:
    """Splits 0: rows of several tokens; else a decode step cut into so many parts."""
    from executor_svc.cuda.paged_kernels import Tables, paged_attention

    dtype, block_size = torch.bfloat16, 16
    stops = [1, 16, 17, 130, 600, 33]
    starts = [stop - 1 for stop in stops] if splits else [0, 3, 0, 30, 597, 32]
    blocks = [-(-stop // block_size) for stop in stops]
    shuffled = torch.randperm(sum(blocks) + 5, device="cuda")[: sum(blocks)]
    tables = list(torch.split(shuffled, blocks))
    keys, values = (
        randn(sum(blocks) + 5, block_size, kv_heads, dim, dtype=dtype) for _ in range(2)
    )
    lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
    query = randn(sum(lengths), q_heads, dim, dtype=dtype)
    call = LayerCall(
        layer=0,
        scale=dim**-0.5,
        window=40 if kind == "window" else None,
        softcap=20.0 if kind == "softcap" else None,
        sinks=randn(q_heads) if kind == "sinks" else None,
    )

    def ends(counts: list[int]) -> Tensor:
        return torch.tensor([0, *counts], device="cuda").cumsum(0).int()

    found = torch.empty_like(query)
    paged_attention(
        query,
        (keys, values),
        Tables(
            ends(lengths),
            torch.tensor(stops, device="cuda").int(),
            ends(blocks),
            torch.cat(tables).int(),
        ),
        call,
        rows=len(stops),
        longest=max(lengths),
        splits=splits or 1,
        out=found,
    )
    expected = attend_plainly(query, keys, values, starts, stops, tables, call)
    assert (found.double() - expected).norm() / expected.norm() < 6e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1000, 128256])
def test_drawing_without_sorting_chooses_as_the_sampler_does(
    dtype: torch.dtype, vocab: int
) -> None:
    from executor_svc.cuda.sampling_kernels import draw
    from executor_svc.sampler import Path, SamplingRows, _draw

    torch.manual_seed(3)
    rows = 256
    scores = (randn(rows, vocab) * torch.rand(rows, 1, device="cuda") * 8).to(dtype)
    scores[::7, 50:500] = float("-inf")

    def any_of(*values: float) -> Tensor:
        return torch.tensor(values, device="cuda")[
            torch.randint(len(values), (rows,), device="cuda")
        ]

    asked = SamplingRows(
        temperature=any_of(0.0, 1e-3, 0.7, 1.0, 5.0),
        top_k=any_of(0, 1, 40, vocab - 1, 2 * vocab).int(),
        top_p=any_of(1.0, 1e-4, 0.5, 0.95, 0.9999),
        min_p=any_of(0.0, 0.0, 0.05, 1.0),
        seed=torch.randint(-(2**62), 2**62, (rows,), device="cuda"),
        position=torch.randint(9000, (rows,), device="cuda").int(),
        stop_ids=torch.full((rows, 8), -1, device="cuda").int(),
        ban_stop=torch.zeros(rows, dtype=torch.bool, device="cuda"),
    )
    best, draws = scores.amax(dim=-1), asked.temperature > 0
    for path in (Path.NOISE, Path.FILTERED):
        found = draw(scores, best, asked, path)
        expected = _draw(scores, best, asked, path)
        # A logarithm may round another way, and a sum of probabilities at the border of top_p.
        same = (found == expected)[draws].float().mean()
        assert same >= 0.97
