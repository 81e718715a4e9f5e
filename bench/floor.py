"""The floor under a decode step: the model's matrix products alone, in one CUDA graph.

Nothing that computes this model with these weights can be faster, except by a better product. The
attention kernel's time comes on top; the bench of decode takes it from a profile of the real step.
"""

import statistics
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

_REPLAYS = 30


class Product(NamedTuple):
    """One matrix product of the model."""

    name: str
    outputs: int
    inputs: int
    layers: int


def products_of(config: Any) -> list[Product]:
    """The products of one token's way through a Llama-like model, projections merged."""
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


def graph_ms(enqueue: Any) -> float:
    """Median time of a replay of what `enqueue` enqueues."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        enqueue()
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


class Floor:
    """Weights of all products of a shape, and their time in one graph."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        self._products = products_of(config)
        self._weights = [
            [torch.randn(p.outputs, p.inputs, dtype=dtype, device=device) for _ in range(p.layers)]
            for p in self._products
        ]

    def total_ms(self, rows: int) -> float:
        """All products in the order of the model."""
        inputs = self._inputs(rows)
        layers = self._products[0].layers

        def enqueue() -> None:
            for layer in range(layers):
                for kind in range(4):
                    linear(inputs[kind], self._weights[kind][layer])
            linear(inputs[4], self._weights[4][0])

        return graph_ms(enqueue)

    def each_ms(self, rows: int) -> dict[str, tuple[float, float]]:
        """By product: ms of all its layers in one graph, and TB/s of its weights."""
        inputs = self._inputs(rows)
        found = {}
        for x, product, weights in zip(inputs, self._products, self._weights, strict=True):

            def enqueue(x: Tensor = x, weights: list[Tensor] = weights) -> None:
                for weight in weights:
                    linear(x, weight)

            ms = graph_ms(enqueue)
            moved = sum(weight.nbytes for weight in weights)
            found[product.name] = (ms, moved / ms / 1e9)
        return found

    def _inputs(self, rows: int) -> list[Tensor]:
        return [
            torch.randn(rows, p.inputs, dtype=w[0].dtype, device=w[0].device)
            for p, w in zip(self._products, self._weights, strict=True)
        ]
