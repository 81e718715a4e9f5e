"""What cuBLAS takes for the matrix products of a layer, by the number of tokens.

    python -m bench.products --shape llama-8b 320 384 448 512

It is no even function: the buckets of executor_svc/cuda/segments.py are where it is good. Several
layers take turns, so that no weight is in a cache.
"""

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.nn.functional import linear

from bench.floor import Product, graph_ms, products_of
from bench.shapes import SHAPES, config_of

_LAYERS = 6


def main(
    tokens: Annotated[list[int], typer.Argument(min=1, help="Numbers of tokens.")],
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "llama-8b",
) -> None:
    kinds = products_of(config_of(shape))[:4]  # without the head, which is no layer's
    title = f"{shape}, bf16, {torch.cuda.get_device_name()}: microseconds of a layer"
    table = Table("tokens", *(kind.name for kind in kinds), "together", "TFLOP/s", title=title)
    for count in tokens:
        took_us = [product_us(kind, count) for kind in kinds]
        operations = sum(2 * count * kind.outputs * kind.inputs for kind in kinds)
        speed = operations / sum(took_us) / 1e6
        table.add_row(str(count), *(f"{us:.0f}" for us in (*took_us, sum(took_us), speed)))
    Console().print(table)


def product_us(kind: Product, tokens: int) -> float:
    """One product of so many tokens, the mean over some layers in a graph."""
    weights = torch.randn(_LAYERS, kind.outputs, kind.inputs, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(tokens, kind.inputs, dtype=torch.bfloat16, device="cuda")

    def enqueue() -> None:
        for weight in weights:
            linear(x, weight)

    return graph_ms(enqueue) / _LAYERS * 1e3


if __name__ == "__main__":
    typer.run(main)
