"""The simulation by hand.

python -m tests.sim                    500 seeds, and 60 storms
python -m tests.sim SEED               one world, with its trace: a line a step
python -m tests.sim FIRST:END          those seeds
python -m tests.sim storm [SEED|FIRST:END]   the same with all faults on and processes killed always
"""

import sys
import time
from collections.abc import Sequence

from tests.sim.many import Outcome, run_many
from tests.sim.world import World

USUAL, STORMS = range(500), range(60)


def main(arguments: Sequence[str]) -> int:
    storm = arguments[:1] == ["storm"]
    which = arguments[storm:]
    if not which:
        worlds = 0 if storm else _run_range(USUAL, storm=False)
        return worlds + _run_range(STORMS, storm=True)
    if ":" in which[0]:
        first, _, end = which[0].partition(":")
        return _run_range(range(int(first), int(end)), storm=storm)
    return _run_traced(int(which[0]) if which[0].isdigit() else which[0], storm=storm)


def _run_traced(seed: int | str, *, storm: bool) -> int:
    world = World(seed, storm=storm, log=_say)
    _say(str(world.knobs))
    world.run()  # what it finds ends the trace
    return 0


def _run_range(seeds: Sequence[int], *, storm: bool) -> int:
    began_s = time.perf_counter()
    outcomes = run_many(seeds, storm=storm)
    took_s = time.perf_counter() - began_s
    failed = [outcome for outcome in outcomes if outcome.failure]
    for outcome in failed[:20]:
        _say(_describe(outcome, storm=storm))
    steps, kills = (sum(getattr(outcome, of) for outcome in outcomes) for of in ("steps", "kills"))
    _say(
        f"{len(outcomes)} {'storms' if storm else 'seeds'}, {steps} steps, {kills} kills "
        f"({kills / took_s:.0f} a second), {len(failed)} failed, {took_s:.1f} s"
    )
    return bool(failed)


def _describe(outcome: Outcome, *, storm: bool) -> str:
    seed = f"'storm {outcome.seed}'" if storm else outcome.seed
    return f"seed {outcome.seed}: {outcome.failure}; see its trace with: make sim SEED={seed}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
