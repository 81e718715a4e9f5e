"""What can wait until a plan is out changes no plan, whether it is done then or later."""

import random

import pytest

from scheduler_svc.core.policies import Fcfs
from svc_wire.capacity import Capacity
from svc_wire.ids import FinishReason
from svc_wire.ring import FRAMES
from tests.support.core_drive import CoreDrive

CAPACITY = Capacity(
    num_blocks=20, block_size=4, rows_max=4, tokens_max=24, lanes=4, model_len_max=64, vocab_size=10
)


def _plans(seed: int, *, tidies: bool) -> list[bytes]:
    """The contents of all plans of a drawn run; few token ids, so that prefixes are shared."""
    rng = random.Random(seed)
    drive = CoreDrive(Fcfs(), CAPACITY, depth=rng.randint(0, 2), step_tokens_max=24)
    plans = []
    seq_ids = []
    for _ in range(150):
        if rng.random() < 0.2:
            prompt = rng.randint(1, 30)
            seq_ids.append(drive.add(prompt, rng.randint(1, 63 - prompt)))
        if seq_ids and rng.random() < 0.03:
            drive.abort(rng.choice(seq_ids), FinishReason.ABORT)
        if rng.random() < 0.02:
            drive.hand_over()
        drive.step()
        if tidies:
            drive.core.tidy()
        frame = drive._executor.plans[(drive.core.next_step - 1) % FRAMES]
        plans.append(frame.sections["block_ids"].tobytes() + frame.sections["row_start"].tobytes())
    assert drive.core.stats().cache_hit_tokens > 0
    return plans


@pytest.mark.parametrize("seed", range(5))
def test_plans_are_the_same_whether_it_is_done_at_once_or_later(seed: int) -> None:
    assert _plans(seed, tidies=True) == _plans(seed, tidies=False)


def test_who_comes_next_finds_what_the_last_plan_has_filled() -> None:
    drive = CoreDrive(Fcfs(), CAPACITY, depth=0)
    first = drive.add(8, 40)
    for _ in range(CAPACITY.vocab_size - 1):
        drive.abort(drive.add(1, 1))
    drive.step()
    second = drive.add(12, 1)  # begins with the same eight tokens
    drive.run_steps(3)
    assert drive.endings[second].cached_tokens == 8
    assert first not in drive.endings
