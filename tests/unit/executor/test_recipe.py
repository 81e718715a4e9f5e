"""A step does no more than its rows ask for."""

import random

import pytest

pytest.importorskip("torch")

from executor_svc.recipe import PLAIN, Recipe, Told, choose_recipe
from executor_svc.sampler import Path
from svc_wire.frames import PlanFrame
from svc_wire.ids import LOGPROBS_MAX, RowFlag
from tests.support.plans import SMALL, RowSpec, fill_plan, plan_buffer

pytestmark = pytest.mark.model

S, P = RowFlag.SAMPLES, RowFlag.PENALISED


@pytest.mark.parametrize(
    ("flags", "logprobs", "recipe"),
    [
        ([S, S], [0, 0], PLAIN),
        ([S, 0], [0, 0], PLAIN),
        ([S, P], [0, 0], Recipe(Path.GREEDY, penalises=True)),
        ([S | P, S], [1, 0], Recipe(Path.GREEDY, penalises=True, told=Told.CHOSEN)),
        ([S, S], [1, 2], Recipe(Path.GREEDY, told=Told.TOP)),
        ([S, S], [1 + LOGPROBS_MAX, 1], Recipe(Path.GREEDY, told=Told.TOP)),
    ],
)
def test_the_least_that_serves_all(flags: list[int], logprobs: list[int], recipe: Recipe) -> None:
    """A prompt that does not sample yet must join its history all the same."""
    frame = PlanFrame(plan_buffer(SMALL), SMALL, writable=True)
    rows = [RowSpec(lane, 0, 1 + lane, flag) for lane, flag in enumerate(flags)]
    fill_plan(frame, rows, random.Random(0), epoch=1, step=1)
    frame.logprobs[:2], frame.temperature[:2] = logprobs, 0
    frame.seal(epoch=1, step=1, rows=2, tokens=3, blocks=2, samples=sum(flag & S for flag in flags))
    assert choose_recipe(frame.read(epoch=1, step=1)) == recipe
