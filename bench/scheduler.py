"""What a decode step costs a scheduler: `python -m bench.scheduler`.

Prints microseconds for planning one step and committing another, p50 and p99, beside the same work
in other schedulers that are installed here. Every sequence of the batch decodes: 100 prompt tokens,
then 300 steps that nobody measures, then `--steps` that are. With W waiting, W more requests stand
in the queue all the time. Times are CPU time of the thread, so that a busy machine does not count;
`--wall` takes the clock on the wall instead. The collector of cycles is frozen after the start, as
the service does it (see scheduler_svc.collector); the last columns count its passes and give the
longest in microseconds, on the wall.
"""

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import typer

from bench import scheduler_peers
from bench.scheduler_peers import Unavailable
from scheduler_svc import collector
from scheduler_svc.core import Request, Scheduler, SchedulerConfig, policies
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, StepResult, StepTiming
from svc_wire.layout import plan_dtype

PROMPT_TOKENS, WARM_STEPS, VOCAB = 100, 300, 1000


def ours(rows: int, waiting: int) -> Callable[[], None]:
    """One step of our core, as the service drives it at depth 1: commit step N, plan step N + 2."""
    capacity = Capacity(
        num_blocks=rows * 64, block_size=16, rows_max=rows, tokens_max=max(2048, rows),
        lanes=rows, model_len_max=1024, vocab_size=VOCAB,
    )  # fmt: skip
    config = SchedulerConfig(
        step_tokens_max=capacity.tokens_max, running_max=rows, waiting_max=rows + waiting
    )
    core = Scheduler(config, policies.Fcfs())
    core.attach(capacity, 1)
    rng = np.random.default_rng(0)
    for _ in range(rows + waiting):
        prompt = rng.integers(0, VOCAB, PROMPT_TOKENS, np.int32)
        core.add(Request(prompt=prompt, max_tokens=1024 - PROMPT_TOKENS))
    frames = [
        PlanFrame(bytearray(plan_dtype(capacity).itemsize), capacity, writable=True)
        for _ in range(4)
    ]
    tokens, status = rng.integers(0, VOCAB, rows).astype(np.int32), np.zeros(rows, np.uint8)
    timing = StepTiming(compute_begin_ns=0, compute_end_ns=5_000_000)
    first = core.plan(frames[1])
    assert first is not None
    planned = [first]

    def step() -> None:
        number = planned[-1].step + 1
        following = core.plan(frames[number % 4])
        assert following is not None
        planned.append(following)
        oldest = planned.pop(0)
        core.commit(
            StepResult(1, oldest.step, status[: oldest.rows], tokens[: oldest.rows], timing)
        )

    return step


@dataclass(frozen=True, slots=True)
class Run:
    """How to measure."""

    steps: int
    clock: Callable[[], int]
    freeze: bool


SCHEDULERS: dict[str, Callable[[int, int], Callable[[], None]]] = {
    "twostroke": ours,
    "transformers": scheduler_peers.transformers,
    "vllm": scheduler_peers.vllm,
}


class CollectorPauses:
    """How long the collector of cycles held everything up, while this is entered."""

    def __init__(self) -> None:
        self.pauses_us: list[float] = []
        self._begin_ns = 0

    def _on_pass(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._begin_ns = time.perf_counter_ns()
        else:
            self.pauses_us.append((time.perf_counter_ns() - self._begin_ns) / 1e3)

    def __enter__(self) -> Self:
        gc.callbacks.append(self._on_pass)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._on_pass)


def report(name: str, rows: int, waiting: int, run: Run) -> str:
    """One line of the table."""
    line = f"{name:<14}{rows:>6}{waiting:>9}"
    try:
        step = SCHEDULERS[name](rows, waiting)
    except Unavailable as error:
        return f"{line}  {error}"
    for _ in range(WARM_STEPS):
        step()
    if run.freeze:
        collector.freeze()
    took = []
    with CollectorPauses() as passes:
        for _ in range(run.steps):
            begin_ns = run.clock()
            step()
            took.append((run.clock() - begin_ns) / 1e3)
    p50, p99 = np.percentile(took, [50, 99])
    longest = max(passes.pauses_us, default=0)
    return f"{line}{p50:>10.0f}{p99:>10.0f}{len(passes.pauses_us):>8}{longest:>12.0f}"


def main(
    rows: Annotated[list[int] | None, typer.Option(help="Sequences in the batch.")] = None,
    waiting: Annotated[list[int] | None, typer.Option(help="Requests that wait.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Schedulers to measure.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=600)] = 500,
    wall: Annotated[bool, typer.Option("--wall", help="Clock on the wall, not CPU time.")] = False,
    freeze: Annotated[bool, typer.Option(help="Tame the collector, as the service does.")] = True,
) -> None:
    """Prints one line for each scheduler, number of rows and length of the queue."""
    run = Run(steps, time.perf_counter_ns if wall else time.thread_time_ns, freeze)
    sys.stdout.write(f"plan + commit, microseconds of {'wall' if wall else 'CPU'} time a step\n")
    columns = f"{'p50':>10}{'p99':>10}{'passes':>8}{'longest':>12}"
    sys.stdout.write(f"{'scheduler':<14}{'rows':>6}{'waiting':>9}{columns}\n")
    for name in only or SCHEDULERS:
        for count in rows or (32, 256, 1024, 4096):
            for queue in waiting or (0, 4096):
                sys.stdout.write(report(name, count, queue, run) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
