"""Many worlds, spread over processes. Which seeds fail does not depend on how many there are."""

import os
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from tests.sim.world import World

CHUNK_SEEDS = 25
PROCESSES_MAX = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a world."""

    seed: int | str
    steps: int
    kills: int
    failure: str
    """Empty if all went well; else the error and where it was raised."""


def run_one(seed: int | str, *, storm: bool = False) -> Outcome:
    world = World(seed, storm=storm)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever is found is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.name}, {where.filename}:{where.lineno})"
        return Outcome(seed, world.steps, world.kills, text)
    return Outcome(seed, world.steps, world.kills, "")


def run_many(
    seeds: Sequence[int | str], processes: int | None = None, *, storm: bool = False
) -> list[Outcome]:
    """The outcome of each seed, in order."""
    processes = processes or min(len(os.sched_getaffinity(0)), PROCESSES_MAX)
    run = partial(run_one, storm=storm)
    if processes == 1 or len(seeds) <= CHUNK_SEEDS:
        return [run(seed) for seed in seeds]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return list(pool.map(run, seeds, chunksize=CHUNK_SEEDS))


def first_failure(seeds: Iterable[int | str]) -> Outcome | None:
    """The first world that fails; later ones are not looked at."""
    return next((outcome for seed in seeds if (outcome := run_one(seed)).failure), None)
