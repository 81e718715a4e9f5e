"""The least work that serves every row of a step, chosen on the host from its plan.

So the device needs no branch, and nobody pays for what no row of the step asked for. Rows get the
same tokens by any recipe that serves them.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from executor_svc.sampler import Path, choose_path
from svc_wire.frames import BatchPlan
from svc_wire.ids import RowFlag

_PENALISED = int(RowFlag.PENALISED)


class Told(IntEnum):
    """Which log-probabilities a step must tell."""

    NONE = 0
    CHOSEN = 1
    """Those of the sampled tokens."""
    TOP = 2
    """The most likely ones, too."""


_TOLD = tuple(Told)


class Recipe(NamedTuple):
    path: Path
    penalises: bool = False
    """Some rows have a history that must be kept."""
    told: Told = Told.NONE


PLAIN = Recipe(Path.GREEDY)


def choose_recipe(plan: BatchPlan) -> Recipe:
    # Plain reductions: the array methods cost twice as much, in every step.
    asked = int(np.maximum.reduce(plan.logprobs))
    flags = int(np.bitwise_or.reduce(plan.row_flags))
    return Recipe(choose_path(plan), flags & _PENALISED != 0, _TOLD[min(asked, Told.TOP)])
