"""What a seed stands for: the sizes of a small world, and which faults happen in it.

Sizes are part of the fault space: a tiny pool, a budget of one token or a block of one token make
rare paths common. Each kind of fault is on or off for a seed (swarm testing), since a world with
all of them at once never gets deep into any.

A storm is such a world all the same: every fault is on, each less often, and processes are killed
all the time.
"""

import random
from dataclasses import dataclass, replace
from enum import Enum

from scheduler_svc.core import SchedulerConfig
from svc_wire.capacity import Capacity

STORM_TICKS = 300


class Fault(Enum):
    """Kinds of trouble. Times and targets are drawn when they happen."""

    ABORT = "a request is aborted at any moment, maybe twice, maybe after its end"
    DEATH = "the executor dies; another one, maybe of another size, comes"
    GHOST = "a result of an earlier epoch or step arrives again"
    POISON = "the executor fails whenever it computes one certain request"
    RESTART = "the scheduler dies or hands over; front ends submit again, with the output so far"
    SWAP = "another policy is put in force"
    CRAZY = "the policy is one that answers nonsense sooner or later"
    STALL = "the executor stops answering, until it is given up"
    TORN_PLAN = "a plan's frame is damaged; the executor drops the epoch"
    TORN_RESULT = "a result's frame is damaged; the scheduler gives the executor up"
    ROW_ERROR = "a row cannot be computed"
    SLOW_STEPS = "steps take a multiple of their time"
    LATE_LOOKS = "results are noticed late, several at once"
    LAZY_PLANS = "the scheduler is busy elsewhere and plans late"


KILLS = {Fault.DEATH, Fault.RESTART}
"""Faults that end a process."""

LOSSES = {Fault.DEATH, Fault.STALL, Fault.TORN_PLAN, Fault.TORN_RESULT}
"""Faults that lose the executor and are no request's doing."""

RARE = LOSSES | {Fault.POISON, Fault.RESTART, Fault.SWAP, Fault.CRAZY}
"""Faults after which other rules hold: there must be worlds without any of them."""


@dataclass(frozen=True)
class Knobs:
    """The sizes of one world."""

    config: SchedulerConfig
    capacity: Capacity
    faults: frozenset[Fault]
    requests: int
    trouble_ticks: int
    """Requests and faults come within so many ticks; after that the world heals."""
    chance: float = 1.0
    """What the chance of a fault that strikes with a step is multiplied by."""
    kills: int = 0
    """How often each of KILLS happens; 0: as often as trouble.py says."""


def draw_storm(rng: random.Random) -> Knobs:
    return replace(
        draw_knobs(rng),
        faults=frozenset(Fault),
        requests=rng.randint(20, 40),
        trouble_ticks=STORM_TICKS,
        chance=0.2,
        kills=rng.randint(40, 80),
    )


def draw_knobs(rng: random.Random) -> Knobs:
    faults = frozenset(fault for fault in Fault if rng.random() < (0.12 if fault in RARE else 0.3))
    config = SchedulerConfig(
        depth=rng.choice([0, 1, 1, 1, 2]),
        step_tokens_max=rng.choice([1, 3, 5, 8, 8, 9, 13, 16, 16, 32, 64, 64]),
        running_max=rng.choice([1, 2, 3, 4, *[8] * 8]),
        waiting_max=rng.choice([2, 100, 100, 100]),
        prefix_cache=rng.random() < 0.75,
        overtakes_max=rng.choice([1, 3, 1000]),
        itl_target_ms=rng.choice([0.0, 0.0, 40.0]),
        losses_max=rng.choice([1, 2, 3 if Fault.POISON in faults else 100]),
    )
    return Knobs(
        config=config,
        capacity=draw_capacity(rng),
        faults=faults,
        requests=rng.randint(3, 11),
        trouble_ticks=rng.choice([1, 10, 30, 60]),
    )


def draw_capacity(rng: random.Random) -> Capacity:
    block_size = rng.choice([1, 2, 3, 4, 4, 5, 8])
    rows_max = rng.choice([1, 3, *[8] * 10])
    model_len_max = rng.choice([7, 12, 20, 20, 40])
    # Room for so many sequences of full length, the last of which may be cut short.
    pool_tokens = int(model_len_max * rng.choice([0.8, 1.4, 2.0, 2.0, 2.5, 4.0]))
    return Capacity(
        num_blocks=max(2, pool_tokens // block_size),
        block_size=block_size,
        rows_max=rows_max,
        tokens_max=max(rows_max, rng.choice([8, 16, 64])),
        lanes=rows_max + rng.choice([0, 1, 3]),
        model_len_max=model_len_max,
        vocab_size=rng.choice([11, 50]),
        host_blocks=rng.choice([0, 1, 3, 10, 100]),
        block_copy_ns=rng.choice([0, 0, 100_000, 1_000_000]),  # a tick is a millisecond
    )
