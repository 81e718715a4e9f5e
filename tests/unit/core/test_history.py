"""Sequences whose tokens depend on their history: every token of it must pass the executor."""

import numpy as np
import pytest

from scheduler_svc.core import Request, Scheduler
from svc_wire.frames import PlanFrame
from svc_wire.frontend_link import Sampling
from svc_wire.ids import RowStatus
from tests.support.core import CAPACITY, result, scheduler
from tests.support.plans import plan_buffer

PROMPT = np.arange(1, 11, dtype=np.int32)
PENALTIES = [
    Sampling(repetition_penalty=1.2),
    Sampling(presence_penalty=-0.5),
    Sampling(frequency_penalty=0.5),
]


def first_position(core: Scheduler, sampling: Sampling) -> int:
    """Where a sequence with PROMPT begins, which ends with its first token."""
    core.add(Request(prompt=PROMPT, max_tokens=1, sampling=sampling))
    frame = PlanFrame(plan_buffer(CAPACITY), CAPACITY, writable=True)
    planned = core.plan(frame)
    assert planned is not None
    core.commit(result(planned.step, (RowStatus.OK, 5)))
    return int(frame.row_start[0])


@pytest.mark.parametrize("sampling", PENALTIES)
def test_a_sequence_with_penalties_takes_no_hit_but_leaves_its_blocks(sampling: Sampling) -> None:
    core = scheduler()
    assert first_position(core, sampling) == 0
    assert first_position(core, Sampling()) == 8
    assert first_position(core, sampling) == 0


def test_only_penalties_that_do_something_need_the_history() -> None:
    assert all(Request(prompt=PROMPT, max_tokens=1, sampling=s).needs_history for s in PENALTIES)
    none = Sampling(temperature=1.0, top_k=3, repetition_penalty=1.0, presence_penalty=0.0)
    assert not Request(prompt=PROMPT, max_tokens=1, sampling=none).needs_history
