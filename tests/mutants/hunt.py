"""Looks for a planted bug: `python -m tests.mutants.hunt ROOT SEEDS|STORY`, in its own process.

ROOT is where the damaged core must have been imported from. Prints what found the bug, and exits
with 0; exits with 1 if nothing did.
"""

import sys
from pathlib import Path

import scheduler_svc
from tests.scenario.test_scenarios import STORIES, play
from tests.sim.many import first_failure


def simulate(seeds: int) -> str | None:
    """The first world in which something is wrong."""
    outcome = first_failure(range(seeds))
    return f"seed {outcome.seed}: {outcome.failure}" if outcome else None


def tell(name: str) -> str | None:
    """What is wrong with the story."""
    told = next(story for story in STORIES if story.stem == name).read_text()
    try:
        return None if play(told) == told else f"the story goes otherwise: {name}"
    except Exception as error:  # noqa: BLE001 - whatever is found is a finding
        return f"the story breaks off: {type(error).__name__}: {error}"


def main(root: str, where: str) -> int:
    assert Path(scheduler_svc.__file__ or "").is_relative_to(root), "the wrong core"
    found = simulate(int(where)) if where.isdigit() else tell(where)
    sys.stdout.write(f"{found or ''}\n")
    return found is None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
