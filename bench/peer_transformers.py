"""transformers' own continuous batching on the job of bench.decode: a peer, measured the same way.

    python -m bench.peer_transformers --shape llama-8b --batch 32 --prompt 100 --new 1024

Same shape and random weights, greedy, CUDA graphs, synchronous and asynchronous, with the best
attention that is installed: FlashAttention 3, else 2, else torch's SDPA (which builds a dense mask
over all of the batch's keys: then the comparison says little beyond small batches). Written against
transformers 5.17 to 5.24.
"""

import time
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from bench.shapes import SHAPES, config_of

Prompts = list[list[int]]
_BLOCK = 256
_WARM_NEW = 16
_TIMEOUT_S = 60


def best_attention() -> str:
    for package, name in (
        ("flash_attn_interface", "paged|flash_attention_3"),
        ("flash_attn", "paged|flash_attention_2"),
    ):
        if find_spec(package) is not None:
            return name
    return "paged|sdpa"


def batching_config(batch: int, length: int, overlap: bool) -> ContinuousBatchingConfig:
    fields = ContinuousBatchingConfig.__dataclass_fields__
    options: dict[str, Any] = {
        "num_blocks": int(batch * (length // _BLOCK + 2) / 0.8) + 8,
        "page_size" if "page_size" in fields else "block_size": _BLOCK,
        "max_batch_tokens": max(512, batch),
        "use_async_batching": overlap,
        "use_cuda_graph": True,
        "allow_block_sharing": False,
    }
    return ContinuousBatchingConfig(**options)


def run(model: Any, prompts: Prompts, new: int, overlap: bool) -> float:
    """Seconds from the first request to the last token, after a warm-up in the same context."""
    generation = GenerationConfig(
        max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    config = batching_config(len(prompts), len(prompts[0]) + new, overlap)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=config, block=True, timeout=30
    ) as manager:
        seconds = 0.0
        for count in (_WARM_NEW, new):
            begin = time.perf_counter()
            live = set(manager.add_requests(prompts, max_new_tokens=count))
            while live:
                result = manager.get_result(timeout=_TIMEOUT_S)
                assert result is not None, "no result for a minute"
                if result.is_finished():
                    assert len(result.generated_tokens) == count
                    live.discard(result.request_id)
            seconds = time.perf_counter() - begin
    return seconds


def main(
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "llama-8b",
    batch: Annotated[int, typer.Option(min=1)] = 32,
    prompt: Annotated[int, typer.Option(min=1)] = 100,
    new: Annotated[int, typer.Option(min=1)] = 1024,
) -> None:
    attention = best_attention()
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config_of(shape), dtype=torch.bfloat16).eval()
    model.set_attn_implementation(attention)
    rng = np.random.default_rng(0)
    prompts: Prompts = rng.integers(0, model.config.vocab_size, (batch, prompt)).tolist()
    table = Table(
        "batching", "seconds", "ms a step", "tokens/s",
        title=f"transformers, {shape}, {attention}, batch {batch}, {prompt} + {new}",
    )  # fmt: skip
    for name, overlap in (("synchronous", False), ("asynchronous", True)):
        seconds = run(model, prompts, new, overlap)
        speed = batch * new / seconds
        table.add_row(name, f"{seconds:.2f}", f"{seconds / new * 1e3:.2f}", f"{speed:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
