"""Ranks that are kept: the same order as if each were asked anew, without asking for each."""

import random
from typing import ClassVar

import numpy as np

from scheduler_svc.core import Policy
from scheduler_svc.core.policies import Fair, GroupView, Key, RequestView
from svc_wire.capacity import Capacity
from tests.support.core import plan, request, scheduler
from tests.support.core_drive import CoreDrive

SMALL = Capacity(
    num_blocks=14, block_size=4, rows_max=4, tokens_max=16, lanes=5, model_len_max=48, vocab_size=50
)


class AskedAnew(Fair):
    rank_is_kept: ClassVar[bool] = False


class Reversed(Policy):
    """A group for each request, the last first."""

    name: ClassVar[str] = "reversed"
    rank_is_kept: ClassVar[bool] = True
    asked = 0

    def key(self, request: RequestView) -> Key:
        return (request.arrival,)

    def group(self, request: RequestView) -> str:
        return str(request.arrival)

    def rank(self, group: GroupView) -> Key:
        self.asked += 1
        return (-group.head.arrival,)


class Faulty(Reversed):
    def piece(self, request: RequestView, wanted: int, room: int) -> int:
        raise ValueError


def story(policy: Policy, seed: int) -> list[tuple[int, ...]]:
    """Whose rows there are, step by step, where tenants come, go and are pre-empted."""
    rng = random.Random(seed)
    drive = CoreDrive(policy, SMALL, running_max=4, step_tokens_max=9, depth=1, overtakes_max=20)
    rows: list[tuple[int, ...]] = []
    for step in range(150):
        for _ in range(rng.choice([0, 0, 1, 2])):
            drive.add(rng.randint(1, 20), rng.randint(1, 20), tenant=f"t{rng.randrange(9)}")
        live = sorted(drive.core._roster.sequences)
        if live and rng.random() < 0.1:
            drive.abort(rng.choice(live))
        if step == 70:
            drive.lose()
            drive.attach(SMALL)
        drive.step()
        batch = drive.core._roster.batch
        assert batch is not None
        rows.append(tuple(np.sort(batch.rows.seq_id).tolist()))
        drive.core.check()
    stats = drive.core.stats()
    assert stats.policy_faults == 0
    assert stats.preemptions
    return rows


def test_fair_serves_whom_it_would_serve_if_it_were_asked_anew() -> None:
    for seed in range(8):
        assert story(Fair({}), seed) == story(AskedAnew({}), seed)
        options = {"credit": "0", "weight.t1": "5"}
        assert story(Fair(options), seed) == story(AskedAnew(options), seed)


def test_a_group_is_asked_about_once_as_long_as_nothing_is_told_of_it() -> None:
    policy = Reversed()
    core = scheduler(policy, running_max=4)
    for _ in range(100):
        core.add(request(prompt_len=3))
    planned = plan(core)
    assert planned
    assert planned.first_rows == (100, 99, 98, 97)
    assert policy.asked == 100


def test_the_ranks_of_a_policy_that_is_at_fault_are_not_kept() -> None:
    core = scheduler(Faulty(), running_max=3)
    for _ in range(3):
        core.add(request(prompt_len=3))
    planned = plan(core)
    assert planned
    assert planned.first_rows == (3, 1, 2)
