"""What a decode step asks of a policy, however many wait: nothing, while no place is free."""

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

import pytest

from scheduler_svc.core.policies import BY_NAME, GroupView, Key, Policy, RequestView
from svc_wire.capacity import Capacity
from tests.support.core_drive import CoreDrive

CAPACITY = Capacity(
    num_blocks=64, block_size=16, rows_max=4, tokens_max=64, lanes=4, model_len_max=128,
    vocab_size=50,
)  # fmt: skip


class Counting(Policy):
    """Fair-like, with a group for each request."""

    name: ClassVar[str] = "counting"
    calls: Counter[str]

    def key(self, request: RequestView) -> Key:
        return (request.arrival,)

    def group(self, request: RequestView) -> str:
        return str(request.arrival)

    def rank(self, group: GroupView) -> Key:
        self.calls["rank"] += 1
        return (0,)

    def served(self, group: str, prompt_tokens: int, output_tokens: int) -> None:
        self.calls["served"] += 1


def test_a_full_batch_asks_the_policy_nothing() -> None:
    policy = Counting()
    policy.calls = Counter()
    drive = CoreDrive(policy, CAPACITY, waiting_max=300)
    for _ in range(4):
        drive.add(5, 100)
    for _ in range(3):
        drive.step()
    for _ in range(200):
        drive.add(5, 3)
    policy.calls.clear()
    for _ in range(60):
        drive.step()
    assert policy.calls.total() == 0


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf", "fair", "deadline"])
def test_who_does_not_fit_is_not_looked_for_again_until_somebody_leaves(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = CoreDrive(BY_NAME[policy](), CAPACITY)
    drive.add(30, 60)
    drive.run_steps(4)
    batch = drive.core._roster.batch
    assert batch is not None
    pool, looks = batch.pool, list[None]()
    find = pool.find

    def counting_find(keys: Iterable[bytes]) -> list[int]:
        looks.append(None)
        return find(keys)

    monkeypatch.setattr(pool, "find", counting_find)
    kept = pool.take(pool.available - 3)  # so much that the next one has no room
    drive.add(100, 5)
    planner = drive.core._planner
    assert planner is not None
    for _ in range(10):
        assert planner._admit(10, []) == 10
    assert len(looks) == 1
    pool.release(kept)
    drive.run()
