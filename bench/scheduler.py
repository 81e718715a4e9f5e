"""What a decode step costs a scheduler: `python -m bench.scheduler`.

Prints microseconds for planning one step and committing another: the least, p50 and p99, then p50
and p99 of committing alone, and p50 of what is done after the plan is out, which no step waits for.
Beside them the same of transformers' scheduler. Every sequence of the batch decodes: 100 prompt
tokens, then 300 steps that nobody measures, then `--steps` that are. With W waiting, W more
requests stand in the queue all the time. Runs of different W take turns, a few steps each, so that
what the machine does meanwhile hits all alike; the last column is the ratio of medians to the first
W. Times are CPU time of the thread, so that a busy machine counts less; `--wall` takes the clock on
the wall. The collector of cycles is frozen after the start, as the service does it (see
scheduler_svc.collector); two columns count its passes and give the longest in microseconds.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import typer

from bench import scheduler_peers
from bench.scheduler_peers import Step, Unavailable
from scheduler_svc import collector
from scheduler_svc.core import PlannedStep, Request, Scheduler, SchedulerConfig, policies
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, StepResult, StepTiming
from svc_wire.layout import plan_dtype

PROMPT_TOKENS, WARM_STEPS, VOCAB = 100, 300, 1000
TURN_STEPS = 10


def ours(rows: int, waiting: int) -> Step:
    """Our core as the service drives it at depth 1: commit step N, plan step N + 2."""
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
    planned: list[PlannedStep] = []

    def commit() -> None:
        oldest = planned.pop(0)
        core.commit(
            StepResult(1, oldest.step, status[: oldest.rows], tokens[: oldest.rows], timing)
        )

    def plan() -> None:
        following = core.plan(frames[core.next_step % 4])
        assert following is not None
        planned.append(following)

    plan()
    return commit, plan, core.tidy


@dataclass(frozen=True, slots=True)
class Run:
    """How to measure."""

    steps: int
    clock: Callable[[], int]
    freeze: bool


SCHEDULERS: dict[str, Callable[[int, int], Step]] = {
    "twostroke": ours,
    "transformers": scheduler_peers.transformers,
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


class Measured:
    """One scheduler with so many rows and so many waiting, and what its steps took."""

    def __init__(self, name: str, rows: int, waiting: int) -> None:
        self.label = f"{name:<14}{rows:>6}{waiting:>9}"
        self._commit, self._plan, self._tidy = SCHEDULERS[name](rows, waiting)
        self._took_us: list[tuple[float, ...]] = []
        self._pauses_us: list[float] = []

    def warm(self) -> None:
        for _ in range(WARM_STEPS):
            self._commit()
            self._plan()
            self._tidy()

    def take_turn(self, steps: int, clock: Callable[[], int]) -> None:
        """The first step is not measured: others had the caches before."""
        self._commit()
        self._plan()
        self._tidy()
        with CollectorPauses() as passes:
            for _ in range(steps):
                begin_ns = clock()
                self._commit()
                between_ns = clock()
                self._plan()
                planned_ns = clock()
                self._tidy()
                end_ns = clock()
                spans_ns = planned_ns - begin_ns, between_ns - begin_ns, end_ns - planned_ns
                self._took_us.append(tuple(span_ns / 1e3 for span_ns in spans_ns))
        self._pauses_us += passes.pauses_us

    @property
    def median_us(self) -> float:
        return float(np.median([whole_us for whole_us, _, _ in self._took_us]))

    def line(self, ratio: float) -> str:
        """One line of the table."""
        whole_us, commit_us, after_us = zip(*self._took_us, strict=True)
        times = [min(whole_us), *np.percentile(whole_us, [50, 99])]
        times += [*np.percentile(commit_us, [50, 99]), np.median(after_us)]
        columns = "".join(f"{took_us:>9.0f}" for took_us in times)
        passes, longest_us = len(self._pauses_us), max(self._pauses_us, default=0)
        return f"{self.label}{columns}{passes:>8}{longest_us:>9.0f}{ratio:>8.2f}"


def report(name: str, rows: int, queues: list[int], run: Run) -> Iterator[str]:
    """A line for each length of the queue, all measured in turns."""
    try:
        all_measured = [Measured(name, rows, waiting) for waiting in queues]
    except Unavailable as error:
        yield f"{name:<14}{rows:>6}  {error}"
        return
    for measured in all_measured:
        measured.warm()
    if run.freeze:
        collector.freeze()
    for _ in range(-(-run.steps // TURN_STEPS)):
        for measured in all_measured:
            measured.take_turn(min(TURN_STEPS, run.steps), run.clock)
    for measured in all_measured:
        yield measured.line(measured.median_us / all_measured[0].median_us)


def main(
    rows: Annotated[list[int] | None, typer.Option(help="Sequences in the batch.")] = None,
    waiting: Annotated[list[int] | None, typer.Option(help="Requests that wait.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Schedulers to measure.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=500)] = 500,
    wall: Annotated[bool, typer.Option("--wall", help="Clock on the wall, not CPU time.")] = False,
    freeze: Annotated[bool, typer.Option(help="Tame the collector, as the service does.")] = True,
) -> None:
    """Prints one line for each scheduler, number of rows and length of the queue."""
    run = Run(steps, time.perf_counter_ns if wall else time.thread_time_ns, freeze)
    sys.stdout.write(f"plan + commit, microseconds of {'wall' if wall else 'CPU'} time a step\n")
    columns = "".join(f"{title:>9}" for title in ("min", "p50", "p99", "commit", "p99", "after"))
    titles = f"{'scheduler':<14}{'rows':>6}{'waiting':>9}{columns}{'passes':>8}{'longest':>9}"
    sys.stdout.write(f"{titles}{'ratio':>8}\n")
    for name in only or SCHEDULERS:
        for count in rows or (32, 256, 1024, 4096):
            for line in report(name, count, waiting or [0, 4096], run):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
