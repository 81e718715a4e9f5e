"""Decode speed of a model with random weights, through the real processes, wire and scheduler.

    python -m bench.decode --shape llama-8b --batch 32 --prompt 100 --new 1024
    python -m bench.decode --shape llama-1b --job 32:100:1024 --job 256:100:256 --overlap both

The executor and the scheduler are processes of their own; the bench takes the place of a front end
and sends token ids. All requests start at once, greedy unless the job says otherwise (drawn,
filtered by top_k and top_p, penalised), with no end but their length. `--overlap off` runs the same
code at depth 0, `--via grpc` puts a real front end and gRPC streams in between.
In the same run, but after the services have gone, it measures the floor: the shape's matrix
products in one CUDA graph, and the attention at the mean context. `--timeline` and `--png` show
some dozen steps; see bench/timeline.py.
"""

import contextlib
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from bench.floor import attention_ms, products_ms
from bench.grpc_streams import GrpcStreams
from bench.shapes import SHAPES, config_of
from bench.stack import Client, Job, JobRun, scheduler, service
from bench.steps import decode_phase
from bench.timeline import write_timeline
from svc_wire.rundir import RunDir

_WARM_NEW = 24
_DEPTHS = {"on": [1], "off": [0], "both": [1, 0]}


def main(
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "llama-8b",
    batch: Annotated[int, typer.Option(min=1)] = 32,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens a prompt.")] = 100,
    new: Annotated[int, typer.Option(min=32, help="Tokens to generate each.")] = 1024,
    job: Annotated[
        list[str] | None,
        typer.Option(help="BATCH:PROMPT:NEW[:SAMPLING]; may be repeated, replaces the three."),
    ] = None,
    overlap: Annotated[str, typer.Option(help="on, off or both.")] = "on",
    attention: str = "auto",
    step_tokens_max: Annotated[int, typer.Option(help="Token budget of a step.")] = 8192,
    floor: Annotated[bool, typer.Option(help="Measure the floor as well.")] = True,
    trace: Annotated[Path | None, typer.Option(help="Keep the steps' records here.")] = None,
    via: Annotated[str, typer.Option(help="wire: the bench is the front end; or grpc.")] = "wire",
    timeline: Annotated[Path | None, typer.Option(help="Write a Perfetto trace.")] = None,
    png: Annotated[Path | None, typer.Option(help="With --timeline: draw it, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a job.")] = False,
) -> None:
    jobs = [_job(text) for text in job or [f"{batch}:{prompt}:{new}"]]
    results = []
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="twostroke-bench-") as directory:
        folder = Path(directory, "model")
        config_of(shape).save_pretrained(folder)
        run_dir = RunDir(Path(directory, "run"))
        kept = trace or Path(directory, "trace")
        kept.unlink(missing_ok=True)
        with service(
            "executor_svc",
            *_executor_options(run_dir, folder, kept, jobs, attention, step_tokens_max),
        ):
            for depth in _DEPTHS[overlap]:
                options = ["--no-prefix-cache", "--step-tokens-max", str(step_tokens_max)]
                with (
                    scheduler(run_dir, kept, depth=depth, options=options) as client,
                    _streams(via, run_dir, folder, kept, client) as streams,
                ):
                    for each in jobs:
                        results.append(_measure(streams, each, depth))
                        _tell(results[-1])
        if timeline is not None:
            write_timeline(kept, timeline, png)
    if floor:
        for result in results:
            _add_floor(shape, result)
    _print(shape, results, as_json)


def _job(text: str) -> Job:
    batch, prompt, new, *sampling = text.split(":")
    return Job(int(batch), int(prompt), int(new), *sampling)


def _streams(
    via: str, run_dir: RunDir, folder: Path, trace: Path, client: Client
) -> contextlib.AbstractContextManager[Client | GrpcStreams]:
    if via == "grpc":
        return GrpcStreams.served(run_dir, folder, trace)
    return contextlib.nullcontext(client)


def _executor_options(
    run_dir: RunDir, folder: Path, trace: Path, jobs: list[Job], attention: str, tokens: int
) -> list[str]:
    rows = max(each.batch for each in jobs)
    length = max(each.prompt + each.new for each in jobs) + 16
    blocks = max(each.batch * ((each.prompt + each.new) // 16 + 2) for each in jobs) + 64
    return [
        "--run-dir", str(run_dir.path), "--model", str(folder), "--load-format", "dummy",
        "--device", "cuda", "--rows-max", str(rows), "--tokens-max", str(max(tokens, rows)),
        "--model-len-max", str(length), "--num-blocks", str(blocks), "--attention", attention,
        "--trace", str(trace),
    ]  # fmt: skip


def _measure(client: Client | GrpcStreams, job: Job, depth: int) -> dict[str, Any]:
    client.run(dataclasses.replace(job, new=_WARM_NEW))
    run: JobRun = client.run(job)
    phase = decode_phase(run.steps, job.batch)
    return {
        **dataclasses.asdict(job),
        "overlap": "on" if depth else "off",
        "seconds": run.seconds,
        "tokens_per_s": job.batch * job.new / run.seconds,
        "first_token_ms": run.first_token_s * 1e3,
        **dataclasses.asdict(phase),
    }


def _tell(result: dict[str, Any]) -> None:
    """One line at once, so that a long bench shows what it has."""
    sys.stderr.write(
        f"batch {result['batch']}, {result['prompt']} + {result['new']} tokens, "
        f"{result['sampling']}, overlap {result['overlap']}: {result['step_ms']:.3f} ms a step, "
        f"GPU busy {result['busy_share']:.2%}, {result['seconds']:.2f} s in all\n"
    )


def _add_floor(shape: str, result: dict[str, Any]) -> None:
    """The floor of the mean step of a job: its context grows from the prompt to prompt + new."""
    config, rows = config_of(shape), result["batch"]
    context = result["prompt"] + result["new"] // 2
    products = products_ms(config, rows)
    attention = attention_ms(config, rows, context)
    result |= {
        "floor_products_ms": products,
        "floor_attention_ms": attention,
        "floor_ratio": result["step_ms"] / (products + attention),
    }


_COLUMNS = {
    "batch": "{:d}", "prompt": "{:d}", "new": "{:d}", "sampling": "{}",
    "overlap": "{}", "step_ms": "{:.3f}", "tokens_per_s": "{:,.0f}", "seconds": "{:.2f}",
    "first_token_ms": "{:.1f}", "busy_share": "{:.2%}", "gap_us_median": "{:.1f}",
    "gap_us_max": "{:.0f}",
    "lead_ms_median": "{:.2f}", "host_ms_median": "{:.2f}", "floor_products_ms": "{:.3f}",
    "floor_attention_ms": "{:.3f}", "floor_ratio": "{:.3f}",
}  # fmt: skip


def _print(shape: str, results: list[dict[str, Any]], as_json: bool) -> None:
    device = torch.cuda.get_device_name()
    if as_json:
        for result in results:
            sys.stdout.write(json.dumps({"shape": shape, "device": device, **result}) + "\n")
        return
    names = [name for name in _COLUMNS if name in results[0]]
    table = Table(*names, title=f"{shape}, bf16, random weights, {device}, separate processes")
    for result in results:
        table.add_row(*(_COLUMNS[name].format(result[name]) for name in names))
    Console(width=200).print(table)


if __name__ == "__main__":
    typer.run(main)
