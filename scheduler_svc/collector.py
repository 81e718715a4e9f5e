"""Python's collector of reference cycles, kept from pausing the loop.

Everything that a request needs is freed by reference counts; there are no cycles to find. Yet the
collector still runs after so many allocations, and its full passes walk every object that lives:
milliseconds, in the middle of a step. So what was loaded at the start is frozen (never walked
again), and full passes become rare: the young generations stay on, so that a cycle in a library is
found all the same.
"""

import gc

YOUNG_ALLOCATIONS = 50_000
"""Allocations, less deallocations, before a pass over the young objects."""
PASSES_A_GENERATION = 50


def freeze() -> None:
    """Call once, when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_ALLOCATIONS, PASSES_A_GENERATION, PASSES_A_GENERATION)
