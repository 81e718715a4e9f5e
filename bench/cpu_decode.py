"""CPU throughput of this program against transformers' own continuous batching.

    python -m bench.cpu_decode [--model smollm2] [--batch 8] [--prompt 64] [--new 64]

Same weights, number format, threads and machine, in one run and in turns, so that other work on the
machine hits all: the executor driven directly, executor and scheduler as processes, and
`generate_batch`. Greedy, end-of-sequence ignored, every request with exactly `new` tokens. Prints
the best of the repeats of each, and how many times as fast as transformers it is.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
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
from bench.stack import Client, Job, scheduler, service
from executor_svc.config import ExecutorConfig
from executor_svc.model_source import find_model
from executor_svc.torch_assembly import default_threads, make_torch_runner
from scheduler_svc.core.types import Request, SchedulerConfig
from svc_wire.rundir import RunDir

Run = Callable[[int], float]
"""Generates so many tokens for every prompt; returns the seconds that it took."""


@contextlib.contextmanager
def direct(folder: Path, dtype: str, threads: int, prompts: list[list[int]]) -> Iterator[Run]:
    config = ExecutorConfig(
        model=str(folder), dtype=dtype, device="cpu", threads=threads, rows_max=len(prompts)
    )
    driver = Driver(make_torch_runner(config, folder))

    def run(new: int) -> float:
        requests = [Request(prompt=np.array(p, np.int32), max_tokens=new) for p in prompts]
        done = driver.run(requests, SchedulerConfig(depth=1, prefix_cache=False))
        assert all(len(output) == new for output in done.outputs.values())
        return done.seconds

    yield run
    driver.close()


@contextlib.contextmanager
def processes(folder: Path, dtype: str, threads: int, batch: int, prompt: int) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="twostroke-bench-") as directory:
        run_dir, trace = RunDir(Path(directory)), Path(directory, "trace")
        executor = service(
            "executor_svc", "--run-dir", directory, "--model", str(folder), "--dtype", dtype,
            "--device", "cpu", "--threads", str(threads), "--rows-max", str(batch),
            "--trace", str(trace), "--log-level", "warning",
        )  # fmt: skip
        options = ("--log-level", "error", "--no-prefix-cache")

        def run(new: int) -> float:
            # One client a run: the scheduler forgets a front end that is silent for a while.
            client = Client(run_dir, trace)
            try:
                return client.run(Job(batch, prompt, new)).seconds
            finally:
                client.close()

        with executor, scheduler(run_dir, trace, depth=1, options=options):
            yield run


def peer(folder: Path, dtype: str, prompts: list[list[int]]) -> Run:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    # Told to go on past the end, not by a token that cannot come: that would change the logits.
    model.generation_config.eos_token_id = None

    def run(new: int) -> float:
        batch = model.generate_batch(
            prompts,
            generation_config=GenerationConfig(
                max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(),
            record_timestamps=True,
            progress_bar=False,
        )
        assert all(len(output.generated_tokens) == new for output in batch.values())
        begin = min(output.created_time for output in batch.values())
        end = max(output.timestamps[-1] for output in batch.values())
        return float(end - begin)

    return run


def measure(runs: dict[str, Run], new: int, repeats: int) -> dict[str, float]:
    """Best seconds of each, taken in turns."""
    for run in runs.values():
        run(2)
    taken = [{name: run(new) for name, run in runs.items()} for _ in range(repeats)]
    return {name: min(turn[name] for turn in taken) for name in runs}


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
    prompts = np.random.default_rng(0).integers(0, 250, (batch, prompt)).tolist()
    torch.set_num_threads(threads)
    with (
        direct(folder, dtype, threads, prompts) as executor_alone,
        processes(folder, dtype, threads, batch, prompt) as executor_and_scheduler,
    ):
        runs = {
            "twostroke, executor alone": executor_alone,
            "twostroke, executor and scheduler": executor_and_scheduler,
            "transformers, generate_batch": peer(folder, dtype, prompts),
        }
        best = measure(runs, new, repeats)
    table = Table(
        "", "tokens/s", "ms a token", "times",
        title=f"{model}, {dtype}, {threads} threads, batch {batch}, {prompt} + {new} tokens",
    )  # fmt: skip
    theirs = best["transformers, generate_batch"]
    for name, seconds in best.items():
        speed, each_ms = batch * new / seconds, seconds / new * 1000
        table.add_row(name, f"{speed:.1f}", f"{each_ms:.1f}", f"{theirs / seconds:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
