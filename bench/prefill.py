"""Prefill speed, and the time to the first token of an idle server, through the real processes.

    python -m bench.prefill --shape llama-8b --batch 32 --prompt 2048

Every request asks for one token, so that a run is prefill alone. Tokens a second count from the
submission to the last first token, so the wire and the scheduler are in it.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console

from bench.shapes import SHAPES, config_of
from bench.stack import Job, scheduler, service
from svc_wire.rundir import RunDir


def main(
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "llama-8b",
    batch: Annotated[int, typer.Option(min=1)] = 32,
    prompt: Annotated[int, typer.Option(min=1)] = 2048,
    single: Annotated[int, typer.Option(min=1, help="Prompt of the idle server.")] = 512,
    budget: Annotated[int, typer.Option(help="Tokens a step.")] = 8192,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    console = Console(width=160)
    blocks = (batch + 2) * (max(prompt, single) // 16 + 2)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="twostroke-bench-") as directory:
        folder, trace = Path(directory, "model"), Path(directory, "trace")
        config_of(shape).save_pretrained(folder)
        run_dir = RunDir(Path(directory, "run"))
        executor = [
            "--run-dir", str(run_dir.path), "--model", str(folder), "--load-format", "dummy",
            "--device", "cuda", "--rows-max", str(batch), "--tokens-max", str(budget),
            "--model-len-max", str(max(prompt, single) + 64), "--num-blocks", str(blocks),
            "--trace", str(trace),
        ]  # fmt: skip
        with service("executor_svc", *executor):
            for depth in (1, 0):
                options = ["--no-prefix-cache", "--step-tokens-max", str(budget)]
                with scheduler(run_dir, trace, depth=depth, options=options) as client:
                    client.run(Job(batch, prompt, 1))
                    runs = [client.run(Job(batch, prompt, 1)).seconds for _ in range(repeats)]
                    firsts = [client.run(Job(1, single, 1)).first_token_s for _ in range(9)]
                    overlap = "on" if depth else "off"
                    console.print(
                        f"{shape}, {torch.cuda.get_device_name()}, overlap {overlap}: "
                        f"{batch} x {prompt} tokens in {np.median(runs):.3f} s, "
                        f"{batch * prompt / np.median(runs):,.0f} tokens/s; "
                        f"first token of {single} after {np.median(firsts) * 1e3:.1f} ms"
                    )


if __name__ == "__main__":
    typer.run(main)
