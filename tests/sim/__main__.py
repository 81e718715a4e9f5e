"""The simulation by hand.

python -m tests.sim              500 seeds
python -m tests.sim SEED         one world, with its trace: a line a step
python -m tests.sim FIRST:END    those seeds
"""

import sys
import time
from collections.abc import Sequence

from tests.sim.many import Outcome, run_many
from tests.sim.world import World

USUAL = range(500)


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        return _run_range(USUAL)
    if ":" in arguments[0]:
        first, _, end = arguments[0].partition(":")
        return _run_range(range(int(first), int(end)))
    return _run_traced(int(arguments[0]) if arguments[0].isdigit() else arguments[0])


def _run_traced(seed: int | str) -> int:
    world = World(seed, log=_say)
    _say(str(world.knobs))
    world.run()  # what it finds ends the trace
    return 0


def _run_range(seeds: Sequence[int]) -> int:
    began_s = time.perf_counter()
    outcomes = run_many(seeds)
    failed = [outcome for outcome in outcomes if outcome.failure]
    for outcome in failed[:20]:
        _say(_describe(outcome))
    steps, took_s = sum(outcome.steps for outcome in outcomes), time.perf_counter() - began_s
    _say(f"{len(outcomes)} seeds, {steps} steps, {len(failed)} failed, {took_s:.1f} s")
    return bool(failed)


def _describe(outcome: Outcome) -> str:
    return (
        f"seed {outcome.seed}: {outcome.failure}; see its trace with: make sim SEED={outcome.seed}"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
