"""The floor under a decode step: its matrix products and its attention, each alone in a graph.

The products are cuBLAS's, with the projections merged, in the order of the model; nothing lies
between them. The attention is our kernel, all layers, after each other. A whole step can come below
the sum: few-row products of ours are faster than cuBLAS's, and kernels overlap at their borders.
"""

import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear

from executor_svc.attention import LayerCall

_REPLAYS = 20
_BLOCK_SIZE = 16


class Product(NamedTuple):
    """One matrix product of the model: x [T, inputs] times W [outputs, inputs]."""

    name: str
    outputs: int
    inputs: int
    layers: int


def products_of(config: Any) -> list[Product]:
    """The products of a token's way through a Llama-like model, projections merged."""
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    dim = config.head_dim
    return [
        Product("qkv", (heads + 2 * kv_heads) * dim, hidden, layers),
        Product("output", hidden, heads * dim, layers),
        Product("gate_up", 2 * inner, hidden, layers),
        Product("down", hidden, inner, layers),
        Product("head", config.vocab_size, hidden, 1),
    ]


def products_ms(config: Any, rows: int) -> float:
    """All matrix products of a step with so many rows, bf16, in one graph."""
    products = products_of(config)
    weights = [[_random(p.outputs, p.inputs) for _ in range(p.layers)] for p in products]
    inputs = [_random(rows, p.inputs) for p in products]

    def enqueue() -> None:
        for layer in range(config.num_hidden_layers):
            for kind in range(4):
                linear(inputs[kind], weights[kind][layer])
        linear(inputs[4], weights[4][0])

    return graph_ms(enqueue)


def attention_ms(config: Any, rows: int, context: int) -> float:
    """Decode attention of all layers, every row with the same context, in one graph."""
    from executor_svc.cuda.paged_kernels import Tables, decode_splits, paged_attention

    kv_heads, dim = config.num_key_value_heads, config.head_dim
    blocks = -(-context // _BLOCK_SIZE)
    caches = [
        (_random(rows * blocks, _BLOCK_SIZE, kv_heads, dim),
         _random(rows * blocks, _BLOCK_SIZE, kv_heads, dim))
        for _ in range(config.num_hidden_layers)
    ]  # fmt: skip
    count = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
    tables = Tables(
        count, torch.full((rows,), context, dtype=torch.int32, device="cuda"), count * blocks,
        torch.randperm(rows * blocks, device="cuda").int(),
    )  # fmt: skip
    query = _random(rows, config.num_attention_heads, dim)
    out = torch.empty_like(query)
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    splits = decode_splits(rows, kv_heads, dim, processors)

    def enqueue() -> None:
        for layer, cache in enumerate(caches):
            call = LayerCall(layer, dim**-0.5, None, None, None)
            paged_attention(
                query, cache, tables, call, rows=rows, longest=1, splits=splits, out=out
            )

    return graph_ms(enqueue)


def graph_ms(enqueue: Callable[[], None]) -> float:
    """Median time of a replay of what `enqueue` enqueues."""
    torch.cuda.synchronize()  # its inputs were made on another stream
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        enqueue()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            enqueue()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]
        graph.replay()
        for event in events:
            event.record(stream)
            graph.replay()
        stream.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events))


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")
