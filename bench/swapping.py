"""What swapping KV to host memory is worth where the KV pool is too small.

    python -m bench.swapping                          SmolLM2 on the CPU
    python -m bench.swapping --shape llama-8b --batch 32 --prompt 2000 --new 1000
                                                      random weights, on the GPU

The same requests through the real scheduler and the real executor, in one process and in turns:
once pre-empted sequences are computed again, once their KV is copied out and in. Twice as many come
as run at once: the scheduler learns what reading costs where some decode meanwhile. Prints the best
of the repeats of each, and what the decision goes by: how long a block takes to copy, and its
tokens to compute.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bench.drive import Driver, Run
from bench.shapes import SHAPES, config_of
from executor_svc.assembly import make_runner
from executor_svc.config import ExecutorConfig
from executor_svc.runner import Runner
from scheduler_svc.core.pace import Pace
from scheduler_svc.core.types import Request, SchedulerConfig
from svc_shell.sizes import parse_bytes

_NEVER_NS = 10**15
"""A copy that takes so long is never cheaper."""


def pace_of(run: Run) -> Pace:
    """What the scheduler knew of the executor at the end of the run."""
    pace = Pace()
    for step in run.steps:
        pace.observe(step.timing, step.rows, step.tokens)
    return pace


def load(shape: str | None, folder: Path, pool: int, swap: int, batch: int, length: int) -> Runner:
    if shape is not None:
        config_of(shape).save_pretrained(folder)
    return make_runner(
        ExecutorConfig(
            model="smollm2" if shape is None else str(folder),
            device="cpu" if shape is None else "cuda",
            load_format="auto" if shape is None else "dummy",
            rows_max=batch,
            model_len_max=length,
            num_blocks=pool // 16,
            swap_bytes=swap,
        )
    )


def main(
    shape: Annotated[str | None, typer.Option(help=", ".join(SHAPES))] = None,
    batch: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 4,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens a prompt.")] = 96,
    new: Annotated[int, typer.Option(min=1, help="Tokens to generate each.")] = 64,
    share: Annotated[float, typer.Option(help="Of all their KV, so much fits the pool.")] = 0.6,
    swap_memory: str = "4GiB",
    repeats: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    rng, length = np.random.default_rng(0), prompt + new
    requests = [
        Request(prompt=rng.integers(0, 250, prompt).astype(np.int32), max_tokens=new)
        for _ in range(2 * batch)
    ]
    pool = max(length + 16, int(share * batch * length))
    config = SchedulerConfig(depth=1, prefix_cache=False)
    with tempfile.TemporaryDirectory() as directory:
        runner = load(shape, Path(directory), pool, parse_bytes(swap_memory), batch, length)
        driver = Driver(runner)
        ways: dict[str, int | None] = {"computed again": _NEVER_NS, "swapped": None}
        runs: dict[str, list[Run]] = {way: [] for way in ways}
        for _ in range(1 + repeats):  # the first warms up
            for way, copy_ns in ways.items():
                runs[way].append(driver.run(requests, config, copy_ns))
        driver.close()
    outputs = [run.outputs for way in ways for run in runs[way]]
    table = Table(
        shape or "smollm2", "seconds", "tokens/s", "input tokens", "pre-empted", "swapped",
        title=f"{len(requests)} x ({prompt} + {new}) tokens, {batch} rows, {pool} fit the pool",
    )  # fmt: skip
    for way in ways:
        best = min(runs[way][1:], key=lambda run: run.seconds)
        table.add_row(
            way, f"{best.seconds:.2f}", f"{len(requests) * new / best.seconds:,.0f}",
            f"{sum(step.tokens for step in best.steps):,}",
            str(best.preemptions), str(best.swaps),
        )  # fmt: skip
    console, capacity = Console(), runner.capacity
    console.print(table)
    token_us = pace_of(runs["computed again"][-1]).prompt_token_s * 1e6
    console.print(
        f"a block of {capacity.block_size} tokens: {2 * capacity.block_copy_ns / 1e3:,.0f} us out "
        f"and in, {capacity.block_size * token_us:,.0f} us to compute; the tokens are "
        + ("the same" if all(o == outputs[0] for o in outputs) else "not the same")
        + (" (in bfloat16 a near tie turns with the batch)" if shape else "")
    )


if __name__ == "__main__":
    typer.run(main)
