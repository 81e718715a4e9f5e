"""The policies of the worlds: all that ship, and one that nobody should write."""

import random
from collections.abc import Collection, Sequence
from typing import ClassVar

from scheduler_svc.core.policies import (
    BY_NAME,
    GroupView,
    Key,
    LoadView,
    Policy,
    RequestView,
    RunningView,
)

CHOICES: list[tuple[str, dict[str, str]]] = [
    *[("fcfs", dict[str, str]())] * 6,
    *[("priority", dict[str, str]())] * 3,
    ("priority", {"ageing_s": "7"}),
    ("sjf", {}),
    ("sjf", {"ageing_s_per_token": "3"}),
    ("prefix", {"window": "1"}),
    ("prefix", {"window": "3"}),
    ("fair", {}),
    ("fair", {"weight.a": "3", "weight.b": "0.5"}),
    ("deadline", {"margin": "2"}),
]


def draw_policy(rng: random.Random) -> Policy:
    name, options = rng.choice(CHOICES)
    return BY_NAME[name](options)


class Crazy(Policy):
    """Groups, ranks, cuts and picks at random, and sooner or later answers what cannot be used."""

    name: ClassVar[str] = "crazy"

    def __init__(self, rng: random.Random, chance: float) -> None:
        super().__init__()
        self._rng, self._chance = rng, chance
        self.is_wrong = False
        """It has answered what cannot be used, or raised."""

    def key(self, request: RequestView) -> Key:
        wrong: Key = self._rng.choice([(), (request.arrival, 1.5), (float("nan"), request.arrival)])
        return wrong if self._goes_wrong() else (self._rng.randrange(3), request.arrival)

    def group(self, request: RequestView) -> str:
        self._may_raise()
        return self._rng.choice(["", "a", "b"])

    def rank(self, group: GroupView) -> Key:
        group.count_cached()
        return (float("nan"),) if self._goes_wrong() else (self._rng.random(),)

    def refuse(self, request: RequestView, load: LoadView) -> str | None:
        return "" if self._goes_wrong() else self._rng.choice([None, None, None, "no"])

    def piece(self, request: RequestView, wanted: int, room: int) -> int:
        most = min(wanted, room)
        wrong = self._rng.choice([0, -1, most + 1])
        return wrong if self._goes_wrong() else self._rng.randint(1, most)

    def victim(self, running: Sequence[RunningView]) -> int:
        wrong = self._rng.choice([-1, len(running)])
        return wrong if self._goes_wrong() else self._rng.randrange(len(running))

    def waits(self, group: str, others: Collection[str]) -> None:
        self._may_raise()

    def served(self, group: str, prompt_tokens: int, output_tokens: int) -> None:
        assert prompt_tokens >= 0
        assert output_tokens >= 0
        self._may_raise()

    def _goes_wrong(self) -> bool:
        if not self.is_wrong:
            self.is_wrong = self._rng.random() < self._chance
            return self.is_wrong
        return False

    def _may_raise(self) -> None:
        if self._goes_wrong():
            raise RuntimeError("crazy")
