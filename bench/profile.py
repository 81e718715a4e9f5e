"""Where the time of decode steps goes, by kernel, and the GPU-busy share by a second measure.

    python -m bench.profile --shape llama-8b --batch 32 --context 600
    python -m bench.profile --shape llama-1b --batch 32 --context 600 --chunk 400

The second one profiles mixed steps: beside the rows that decode, each step computes a prompt.
One process holds scheduler, frames and runner, so that torch's profiler sees the kernels. The busy
share is the union of all kernels' intervals, as CUPTI saw them, over the time from the first to the
last; it knows nothing of the events that the executor takes its own figure from. Kernels that were
launched early wait for their predecessor inside, so single durations overlap and their sum may
exceed the step.
"""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from bench.drive import Driver
from bench.shapes import SHAPES, config_of
from executor_svc.config import ExecutorConfig
from executor_svc.cuda.assembly import make_cuda_runner
from scheduler_svc.core.types import Request, SchedulerConfig

_SHOWN = 14


def busy_share(profiled: Any, steps: int) -> float:
    """Union of the kernels' intervals over their span, in the last `steps` steps."""
    kernels = [event for event in profiled.events() if event.device_type.name == "CUDA"]
    # Every step ends with this kernel.
    ends = sorted(event.time_range.end for event in kernels if "_finish" in event.name)
    window = ends[-steps - 1], ends[-1]
    spans = [(event.time_range.start, event.time_range.end) for event in kernels]
    inside = np.array(sorted(span for span in spans if window[0] < span[1] <= window[1]))
    reached = np.maximum.accumulate(np.append(window[0], inside[:, 1]))
    idle = np.maximum(inside[:, 0] - reached[:-1], 0).sum()
    return 1.0 - float(idle / (window[1] - window[0]))


def main(
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "llama-8b",
    batch: Annotated[int, typer.Option(min=1)] = 32,
    context: Annotated[int, typer.Option(min=2, help="Tokens before the steps.")] = 600,
    chunk: Annotated[int, typer.Option(min=0, help="Tokens of the prompt in each step.")] = 0,
    steps: Annotated[int, typer.Option(min=16, help="Steps that are profiled.")] = 40,
    attention: str = "auto",
    depth: Annotated[int, typer.Option(min=0, max=2, help="0: overlap off.")] = 1,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config_of(shape).save_pretrained(directory)
        config = ExecutorConfig(
            model=shape, load_format="dummy", rows_max=batch + 2,
            model_len_max=max(context + steps, chunk) + 32, attention=attention,
            num_blocks=batch * ((context + steps) // 16 + 3) + 4 * (chunk // 16 + 1),
        )  # fmt: skip
        runner = make_cuda_runner(config, Path(directory), torch.device("cuda:0"))
    driver = Driver(runner)
    rng = np.random.default_rng(0)

    def requests(new: int) -> list[Request]:
        """Rows that decode `new` tokens, and a prompt for every step of theirs."""
        vocab = runner.capacity.vocab_size
        prompts = [rng.integers(0, vocab, context).astype(np.int32) for _ in range(batch)]
        chunks = [
            rng.integers(0, vocab, chunk).astype(np.int32) for _ in range(new if chunk else 0)
        ]
        return [
            *(Request(prompt=prompt, max_tokens=new) for prompt in prompts),
            *(Request(prompt=prompt, max_tokens=1) for prompt in chunks),
        ]

    tokens = batch + chunk if chunk else 8192
    settings = SchedulerConfig(depth=depth, step_tokens_max=tokens, prefix_cache=False)
    driver.run(requests(8), settings)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run = driver.run(requests(steps), settings)
    driver.close()
    _print(profiled, f"{shape}, {batch} rows, context {context}, depth {depth}", steps - 8)
    timings = [step.timing for step in run.steps[8 - steps :]]
    computing = np.median([t.compute_end_ns - t.compute_begin_ns for t in timings]) / 1e6
    host = np.median([t.submitted_ns - t.received_ns for t in timings]) / 1e6
    Console().print(f"a step: {computing:.2f} ms by events, the host's part {host:.2f} ms")


def _print(profiled: Any, title: str, steps: int) -> None:
    table = Table("kernel", "count", "ms in all", title=title)
    kernels = sorted(profiled.key_averages(), key=lambda k: -k.self_device_time_total)
    for kernel in kernels[:_SHOWN]:
        milliseconds = f"{kernel.self_device_time_total / 1e3:.2f}"
        table.add_row(kernel.key[:90], str(kernel.count), milliseconds)
    console = Console(width=130)
    console.print(table)
    share = busy_share(profiled, steps)
    console.print(f"GPU busy in the last {steps} steps: {share:.2%}, by kernel intervals")


if __name__ == "__main__":
    typer.run(main)
