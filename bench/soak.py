"""A long run with random arrivals and aborts: does memory drift, does anything stall?

    python -m bench.soak --shape llama-1b --steps 200000

Requests arrive at random (Poisson), with random prompts, lengths and ways of sampling; some want
log-probabilities, some are aborted at a random moment. The services are processes of their own, the
bench is their front end. A stall is a time of more than `--stall-ms` in which the device computed
nothing, although requests were there, or a single step that took so long. Memory is that of the two
processes and of the device after each tenth of the run; in the first all grows that grows once.
"""

import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import torch
import typer
from rich.console import Console
from rich.table import Table

from bench.shapes import SHAPES, config_of
from bench.stack import WAYS, Client, Steps, service, steps_since, steps_written
from svc_wire.ids import FinishReason
from svc_wire.rundir import RunDir

_ROWS, _PROMPT_MAX, _NEW_MAX = 64, 600, 500
_SAMPLES = 10
_DRAIN_TIMEOUT_S = 120.0


@dataclass(slots=True, eq=False)
class Load:
    """What was asked for and what came of it."""

    rate: float
    abort_share: float
    logprobs_share: float
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    live: dict[int, list[int]] = field(default_factory=dict)
    """Of each key: tokens that are wanted, tokens that came."""
    aborts: dict[int, float] = field(default_factory=dict)
    """When a key will be aborted."""
    next_arrival: float = 0.0
    requests: int = 0
    aborted: int = 0
    tokens: int = 0
    wrong: int = 0
    """Requests with too many tokens, too few, or an end that nobody asked for."""
    idle_ends_ns: list[int] = field(default_factory=list)
    """CLOCK_MONOTONIC of each arrival at a service that had nothing to do."""

    def arrive(self, client: Client, now: float) -> None:
        """Submits what is due, and aborts what is due."""
        while self.next_arrival <= now:
            self.next_arrival += self.rng.exponential(1 / self.rate)
            if len(self.live) >= 2 * _ROWS:
                continue
            new = int(self.rng.integers(1, _NEW_MAX))
            way = list(WAYS.values())[int(self.rng.integers(len(WAYS)))]
            if not self.live:
                self.idle_ends_ns.append(time.monotonic_ns())
            told = 2 if self.rng.random() < self.logprobs_share else None
            key = client.submit(int(self.rng.integers(1, _PROMPT_MAX)), new, way, told)
            self.live[key] = [new, 0]
            self.requests += 1
            if self.rng.random() < self.abort_share:
                self.aborts[key] = now + self.rng.exponential(0.3)
        for key in [key for key, due in self.aborts.items() if due <= now]:
            del self.aborts[key]
            if key in self.live:
                client.abort(key)

    def take(self, client: Client, timeout_s: float) -> None:
        """Counts what comes within the time."""
        outputs = client.receive(timeout_s)
        if outputs is None:
            return
        for key in np.frombuffer(outputs.keys, "<u8").tolist():
            self.live[key][1] += 1
            self.tokens += 1
        for finished in outputs.finished:
            wanted, came = self.live.pop(finished.key)
            aborted = finished.reason is FinishReason.ABORT
            whole = came == wanted and finished.reason is FinishReason.LENGTH
            self.aborted += aborted
            self.wrong += not (aborted or whole)


@dataclass(frozen=True, slots=True)
class Memory:
    """In MiB."""

    executor: float
    scheduler: float
    device: float

    @classmethod
    def now(cls, executor: int, scheduler_: int) -> "Memory":
        free, total = torch.cuda.mem_get_info()
        rss = [psutil.Process(pid).memory_info().rss for pid in (executor, scheduler_)]
        return cls(*(count / 2**20 for count in (*rss, total - free)))


def stalls(
    steps: Steps, stall_ms: float, idle_ends_ns: Sequence[int]
) -> list[tuple[int, str, float]]:
    """(step, "pause" before it or "step" itself, ms) of everything that took longer than that.

    What a pause had of time without requests does not count; it ended at one of `idle_ends_ns`.
    """
    begin, end = steps["compute_begin_ns"], steps["compute_end_ns"]
    learnt = steps["completed_ns"][:-1]  # by the host, whose clock is that of the arrivals
    ends = np.array([0, *idle_ends_ns])
    last_end = ends[np.searchsorted(ends, steps["received_ns"][1:], side="right") - 1]
    pause = begin[1:] - end[:-1] - np.maximum(last_end - learnt, 0)
    kinds = {
        "pause": (pause, steps["step"][1:]),
        "step": (end - begin, steps["step"]),
    }
    return sorted(
        (int(numbers[i]), kind, round(float(took[i]) / 1e6, 1))
        for kind, (took, numbers) in kinds.items()
        for i in np.flatnonzero(took > stall_ms * 1e6)
    )


def main(
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "llama-1b",
    steps: Annotated[int, typer.Option(min=100, help="End after so many steps")] = 200_000,
    minutes: Annotated[float, typer.Option(help="or after so long.")] = 10.0,
    rate: Annotated[float, typer.Option(help="Arrivals a second.")] = 80.0,
    abort_share: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.2,
    logprobs_share: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.1,
    stall_ms: float = 50.0,
    attention: str = "auto",
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="twostroke-bench-") as directory:
        folder, trace = Path(directory, "model"), Path(directory, "trace")
        config_of(shape).save_pretrained(folder)
        run_dir = RunDir(Path(directory, "run"))
        blocks = _ROWS * ((_PROMPT_MAX + _NEW_MAX) // 16) // 2  # half of them at full length
        executor = [
            "--run-dir", str(run_dir.path), "--model", str(folder), "--load-format", "dummy",
            "--device", "cuda", "--rows-max", str(_ROWS), "--tokens-max", "2048",
            "--model-len-max", str(_PROMPT_MAX + _NEW_MAX), "--num-blocks", str(blocks),
            "--attention", attention, "--trace", str(trace),
        ]  # fmt: skip
        planner = ["--run-dir", str(run_dir.path), "--step-tokens-max", "2048"]
        with (
            service("executor_svc", *executor) as executor_pid,
            service("scheduler_svc", *planner) as scheduler_pid,
            closing(Client(run_dir, trace)) as client,
        ):
            pids = (executor_pid, scheduler_pid)
            load = Load(rate, abort_share, logprobs_share)
            memory, seconds = _run(client, load, trace, pids, steps, minutes)
            found = steps_since(trace, 0)
            _report(load, found, seconds, memory)
            _tell_stalls(stalls(found, stall_ms, load.idle_ends_ns), stall_ms)


def _run(
    client: Client, load: Load, trace: Path, pids: tuple[int, int], steps: int, minutes: float
) -> tuple[list[Memory], float]:
    """Returns the memory after each tenth, and the seconds of it all."""
    begin = load.next_arrival = time.monotonic()
    memory: list[Memory] = []
    while len(memory) < _SAMPLES:
        now = time.monotonic()
        share = max(steps_written(trace) / steps, (now - begin) / (60 * minutes))
        if share * _SAMPLES >= len(memory) + 1:
            memory.append(Memory.now(*pids))
        load.arrive(client, now)
        load.take(client, 0.01)
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    while load.live:
        assert time.monotonic() < deadline, f"{len(load.live)} requests never ended"
        load.take(client, 0.1)
    return memory, time.monotonic() - begin


def _report(load: Load, steps: Steps, seconds: float, memory: list[Memory]) -> None:
    console = Console(width=120)
    console.print(
        f"{len(steps):,} steps in {seconds:.0f} s on {torch.cuda.get_device_name()}; "
        f"{load.requests:,} requests, "
        f"{load.aborted:,} of them aborted, {load.wrong} ended wrongly; {load.tokens:,} tokens"
    )
    table = Table("memory, MiB", *(f"{number + 1}/{_SAMPLES}" for number in range(_SAMPLES)))
    for name in Memory.__slots__:
        table.add_row(name, *(f"{getattr(each, name):,.0f}" for each in memory))
    console.print(table)
    console.print(_by_kind(steps))
    begin, end = steps["compute_begin_ns"], steps["compute_end_ns"]
    busy = float((end - begin).sum()) / int(end[-1] - begin[0])
    console.print(f"GPU busy {busy:.2%}; rows a step: {steps['rows'].mean():.1f}")


def _tell_stalls(found: list[tuple[int, str, float]], stall_ms: float) -> None:
    Console(width=120).print(
        f"{len(found)} stalls of more than {stall_ms:g} ms while requests were there "
        f"{found[:20] or ''}"
    )


def _by_kind(steps: Steps) -> Table:
    """Decode steps (a token a row) and mixed ones: what they took, and what went before them."""
    begin, end = steps["compute_begin_ns"], steps["compute_end_ns"]
    figures = {
        "computing": end - begin,
        "gap before": np.append(0, begin[1:] - end[:-1]),
        "host": steps["submitted_ns"] - steps["received_ns"],
    }
    table = Table("steps", "", "tokens", *(f"{name}, ms p50 / p99 / max" for name in figures))
    decodes = steps["tokens"] == steps["rows"]
    for kind, those in (("decode", decodes), ("mixed", ~decodes)):
        if not those.any():
            continue
        spread = [np.percentile(each[those], [50, 99, 100]) / 1e6 for each in figures.values()]
        table.add_row(
            kind,
            f"{those.sum():,}",
            f"{steps['tokens'][those].mean():.0f}",
            *(" / ".join(f"{value:.2f}" for value in each) for each in spread),
        )
    return table


if __name__ == "__main__":
    typer.run(main)
