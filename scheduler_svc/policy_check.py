"""`twostroke policy check MODULE:NAME`: tries a policy out, in worlds made to break it.

Each world has the real core, a tiny pool of memory, few places, requests of several tenants, aborts
and a lost executor, and checks every invariant after every step. What is asked of the policy:

    works     none of its answers had to be refused, and it never raised
    pure      `key` and `group` answer the same when asked again
    ends      every request that was not refused came to its end
    patience  nobody had to be put before everybody, as the policy never let it
    cheap     ordering a request takes less than KEY_US_MAX

The first three decide; the others are told.
"""

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from scheduler_svc.core import Policy, Rejection, Request, Scheduler, SchedulerConfig
from scheduler_svc.core.policies import OptionError, RequestView
from scheduler_svc.core.types import PlannedStep
from scheduler_svc.policy_finder import PolicyNotFound, make_policy, parse_options
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, StepResult, StepTiming
from svc_wire.ids import FinishReason, SeqId
from svc_wire.layout import plan_dtype

WORLDS = 200
REQUESTS = 30
STEPS_MAX = 3000
KEY_US_MAX = 20.0
EXIT_FAULTY, EXIT_USAGE = 1, 2

CAPACITY = Capacity(
    num_blocks=14, block_size=4, rows_max=4, tokens_max=16, lanes=5, model_len_max=48, vocab_size=50
)


@dataclass(slots=True)
class Findings:
    """What was found in all worlds."""

    worlds: int = 0
    requests: int = 0
    refused: int = 0
    preemptions: int = 0
    reliefs: int = 0
    faults: list[str] = field(default_factory=list)
    key_us: float = 0.0


def check_policy(make: Callable[[], Policy], worlds: int = WORLDS) -> Findings:
    """Tries out policies that `make` makes, a new one for each world."""
    found = Findings()
    for fault in impurities(make()):
        found.faults.append(fault)
    found.key_us = _key_us(make())
    for seed in range(worlds):
        _World(seed, make(), found).run()
        if found.faults:
            break
    return found


def impurities(policy: Policy) -> list[str]:
    """What `key` and `group` answer differently when they are asked again."""
    faults = []
    for view in _views(random.Random(0), 50):
        try:
            if policy.key(view) != policy.key(view) or policy.group(view) != policy.group(view):
                faults.append(f"key or group answers differently when asked again about {view}")
                break
        except Exception as error:  # noqa: BLE001 - somebody else's code, whatever it raises
            faults.append(f"key or group raised {error!r} about {view}")
            break
    return faults


def _key_us(policy: Policy) -> float:
    views = _views(random.Random(1), 1000)
    began_s = time.perf_counter()
    try:
        for view in views:
            policy.key(view)
    except Exception:  # noqa: BLE001 - `impurities` has told of it
        return 0.0
    return (time.perf_counter() - began_s) / len(views) * 1e6


def _views(rng: random.Random, count: int) -> list[RequestView]:
    return [
        RequestView(
            arrival=number,
            priority=rng.choice([-1, 0, 0, 7]),
            tenant=rng.choice(["", "a", "b"]),
            prompt_tokens=rng.randint(1, 100_000),
            max_tokens=rng.randint(1, 100_000),
            expected_tokens=rng.choice([0, 5]),
            submitted_s=float(number),
            deadline_s=rng.choice([float("inf"), number + 30.0]),
        )
        for number in range(1, count + 1)
    ]


class _World:
    """One seed: requests come and go, steps are computed, the executor is lost once."""

    def __init__(self, seed: int, policy: Policy, found: Findings) -> None:
        self._rng = random.Random(seed)
        self._found = found
        self._core = Scheduler(
            SchedulerConfig(
                depth=self._rng.choice([0, 1, 2]),
                step_tokens_max=self._rng.choice([4, 9, 16]),
                running_max=4,
                overtakes_max=20,
            ),
            policy,
        )
        self._frame = PlanFrame(bytearray(plan_dtype(CAPACITY).itemsize), CAPACITY, writable=True)
        self._in_flight: list[PlannedStep] = []
        self._epoch = 1
        self._now_s = 0.0
        self._live: set[SeqId] = set()

    def run(self) -> None:
        self._core.attach(CAPACITY, self._epoch)
        left, steps = REQUESTS, 0
        lose_at = self._rng.randrange(100)
        while left or self._live:
            while left and self._rng.random() < 0.3:
                left -= 1
                self._add()
            self._abort_sometimes()
            self._step()
            steps += 1
            if steps == lose_at:
                self._lose()
            self._core.check()
            if steps > STEPS_MAX:
                self._found.faults.append(f"{len(self._live)} requests never ended")
                break
        self._take_stock()

    def _take_stock(self) -> None:
        stats = self._core.stats()
        self._found.worlds += 1
        self._found.preemptions += stats.preemptions
        self._found.reliefs += stats.reliefs
        if stats.policy_faults:
            self._found.faults.append(self._core.policy_fault)

    def _add(self) -> None:
        rng = self._rng
        prompt = rng.randint(1, 30)
        self._found.requests += 1
        request = Request(
            prompt=np.array([rng.randrange(3) for _ in range(prompt)], np.int32),
            max_tokens=rng.randint(1, 40 - prompt),
            priority=rng.choice([0, 0, 5]),
            tenant=rng.choice(["", "a", "b"]),
            expected_tokens=rng.choice([0, 3]),
            deadline_s=self._now_s + rng.choice([5.0, 100.0, float("inf")]),
        )
        try:
            self._live.add(self._core.add(request, self._now_s))
        except Rejection:
            self._found.refused += 1

    def _abort_sometimes(self) -> None:
        if self._live and self._rng.random() < 0.02:
            ending = self._core.abort(self._rng.choice(sorted(self._live)), FinishReason.ABORT)
            if ending:
                self._live.discard(ending.seq_id)

    def _step(self) -> None:
        """Plans what the depth allows; then the oldest step in flight is done."""
        while planned := self._core.plan(self._frame):
            self._in_flight.append(planned)
        self._now_s += 0.05
        if not self._in_flight:
            return
        done = self._in_flight.pop(0)
        timing = StepTiming(compute_end_ns=50_000_000)
        status, tokens = np.zeros(done.rows, np.uint8), np.zeros(done.rows, np.int32)
        output = self._core.commit(StepResult(done.epoch, done.step, status, tokens, timing))
        self._live -= {ending.seq_id for ending in output.endings}

    def _lose(self) -> None:
        self._in_flight.clear()
        self._epoch += 1
        endings = [*self._core.executor_lost(), *self._core.attach(CAPACITY, self._epoch)]
        self._live -= {ending.seq_id for ending in endings}


def main(
    policy: Annotated[str, typer.Argument(help="MODULE:NAME, or a name that is installed.")],
    policy_opt: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE; may be repeated.")
    ] = None,
    worlds: Annotated[int, typer.Option(min=1, help="How many worlds.")] = WORLDS,
) -> None:
    """Try out a policy. Exits with 0 if it can be trusted, with 1 if not."""
    sys.path.insert(0, "")  # a policy that is being written lies in the working directory
    err = Console(stderr=True, highlight=False, markup=False)
    try:
        options = parse_options(policy_opt or [])
        make_policy(policy, options)
    except (PolicyNotFound, OptionError) as error:
        err.print(f"error: {error}", style="red", soft_wrap=True)
        raise typer.Exit(EXIT_USAGE) from error
    found = check_policy(lambda: make_policy(policy, options), worlds)
    Console(highlight=False).print(_table(found))
    if found.faults:
        for fault in found.faults:
            err.print(f"fault: {fault}", style="red", soft_wrap=True)
        raise typer.Exit(EXIT_FAULTY)


def _table(found: Findings) -> Table:
    table = Table(show_header=False, box=None)
    table.add_row("worlds", str(found.worlds))
    table.add_row("requests", f"{found.requests}, refused {found.refused}")
    table.add_row("pre-emptions", str(found.preemptions))
    table.add_row("put before everybody", f"{found.reliefs} (overtaken 20 times)")
    slow = " (too slow)" if found.key_us > KEY_US_MAX else ""
    table.add_row("a key takes", f"{found.key_us:.2f} us{slow}")
    table.add_row("faults", str(len(found.faults)))
    return table


if __name__ == "__main__":
    typer.run(main)
