"""CPU decode throughput of this executor against transformers' own continuous batching.

    python -m bench.cpu_decode [--model smollm2] [--batch 8] [--prompt 64] [--new 64]

Same weights, number format, threads and machine, in one run and in turns, so that other work on the
machine hits both. Prints tokens a second of each (best of the repeats) and their ratio. Both must
produce the same number of tokens; greedy, end-of-sequence ignored.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from bench.drive import Driver
from executor_svc.config import ExecutorConfig
from executor_svc.model_source import find_model
from executor_svc.torch_assembly import default_threads, make_torch_runner
from scheduler_svc.core.types import Request, SchedulerConfig
from svc_wire.frontend_link import Sampling

Prompts = list[list[int]]


def ours(folder: Path, dtype: str, threads: int, batch: int) -> tuple[Any, Driver]:
    config = ExecutorConfig(
        model=str(folder), dtype=dtype, device="cpu", threads=threads, rows_max=batch
    )
    runner = make_torch_runner(config, folder)
    return runner, Driver(runner)


def run_ours(driver: Driver, prompts: Prompts, new: int) -> float:
    """Seconds for all prompts."""
    requests = [
        Request(prompt=np.array(prompt, np.int32), max_tokens=new, sampling=Sampling())
        for prompt in prompts
    ]
    done = driver.run(requests, SchedulerConfig(depth=1, prefix_cache=False))
    assert all(len(output) == new for output in done.outputs.values())
    return done.seconds


def run_peer(model: Any, prompts: Prompts, new: int) -> float:
    """Seconds for all prompts through `generate_batch`."""
    config = GenerationConfig(
        max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True
    )
    begin = time.perf_counter()
    outputs = model.generate_batch(
        prompts,
        generation_config=config,
        continuous_batching_config=ContinuousBatchingConfig(),
        progress_bar=False,
    )
    seconds = time.perf_counter() - begin
    assert all(len(output.generated_tokens) == new for output in outputs.values())
    return seconds


def main(
    model: Annotated[str, typer.Option(help="smollm2, or a local folder.")] = "smollm2",
    batch: Annotated[int, typer.Option(min=1)] = 8,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens a prompt.")] = 64,
    new: Annotated[int, typer.Option(min=1, help="Tokens to generate each.")] = 64,
    dtype: str = "float32",
    threads: Annotated[int, typer.Option(min=1)] = default_threads(),
    repeats: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    folder = find_model(model)
    rng = np.random.default_rng(0)
    prompts: Prompts = rng.integers(100, 20000, (batch, prompt)).tolist()
    runner, driver = ours(folder, dtype, threads, batch)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    peer.generation_config.eos_token_id = None
    run_ours(driver, prompts, 2)
    run_peer(peer, prompts, 2)
    seconds = np.array(
        [(run_ours(driver, prompts, new), run_peer(peer, prompts, new)) for _ in range(repeats)]
    ).min(axis=0)
    runner.close()
    speed = batch * new / seconds
    table = Table(
        "", "tokens/s", "ms/step",
        title=f"{model}, {dtype}, {threads} threads, batch {batch}, {prompt} + {new} tokens",
    )  # fmt: skip
    for name, value in zip(("twostroke", "transformers generate_batch"), speed, strict=True):
        table.add_row(name, f"{value:.1f}", f"{batch / value * 1000:.1f}")
    console = Console()
    console.print(table)
    console.print(f"ratio {speed[0] / speed[1]:.2f}")


if __name__ == "__main__":
    typer.run(main)
