"""A policy under guard: every answer is checked, and the first wrong one takes its word away.

From then on, until the scheduler puts another policy in force, each question has the answer that
first-come-first-served gives. So a question always has an answer, in the middle of a plan too.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from scheduler_svc.core.policies import (
    GroupView,
    Key,
    LoadView,
    Policy,
    RequestView,
    RunningView,
)
from scheduler_svc.core.question import PolicyStalled, Question

T = TypeVar("T")


class Guard:
    """Asks `policy`; `fault` says what was wrong with it, and is empty as long as nothing was."""

    def __init__(self, policy: Policy, question: Question) -> None:
        self.policy = policy
        self._question = question
        self.fault = ""
        kind = type(policy)
        self.groups = kind.group is not Policy.group
        """Whether requests may wait in more than one group."""
        self.displaces = kind.displaces and not self.groups
        self.counts = kind.served is not Policy.served
        """Whether the policy wants to know what was served."""
        self.picks_victims = kind.victim is not Policy.victim

    def key(self, request: RequestView) -> Key:
        def is_sound(key: Key) -> bool:
            return (
                isinstance(key, tuple)
                and all(isinstance(number, int | float) and number == number for number in key)
                and bool(key)
                and key[-1] == request.arrival
            )

        return self._ask("key", lambda: self.policy.key(request), (request.arrival,), is_sound)

    def group(self, request: RequestView) -> str:
        return self._ask(
            "group", lambda: self.policy.group(request), "", lambda name: isinstance(name, str)
        )

    def rank(self, group: GroupView) -> Key:
        def is_sound(rank: Key) -> bool:
            return isinstance(rank, tuple) and all(
                isinstance(number, int | float) and number == number for number in rank
            )

        return self._ask("rank", lambda: self.policy.rank(group), (), is_sound)

    def refuse(self, request: RequestView, load: LoadView) -> str | None:
        return self._ask(
            "refuse",
            lambda: self.policy.refuse(request, load),
            None,
            lambda reason: reason is None or (isinstance(reason, str) and bool(reason)),
        )

    def piece(self, request: RequestView, wanted: int, room: int) -> int:
        most = min(wanted, room)
        return self._ask(
            "piece",
            lambda: self.policy.piece(request, wanted, room),
            most,
            lambda tokens: isinstance(tokens, int) and 1 <= tokens <= most,
        )

    def victim(self, running: Sequence[RunningView]) -> int:
        return self._ask(
            "victim",
            lambda: self.policy.victim(running),
            len(running) - 1,
            lambda index: isinstance(index, int) and 0 <= index < len(running),
        )

    def waits(self, group: str, others: Collection[str]) -> None:
        self._ask("waits", lambda: self.policy.waits(group, others), None, lambda _: True)

    def served(self, group: str, prompt_tokens: int, output_tokens: int) -> None:
        self._ask(
            "served",
            lambda: self.policy.served(group, prompt_tokens, output_tokens),
            None,
            lambda _: True,
        )

    def _ask(
        self, what: str, ask: Callable[[], T], otherwise: T, is_sound: Callable[[T], bool]
    ) -> T:
        if self.fault:
            return otherwise
        try:
            answer = self._question.put(ask)
        except PolicyStalled:
            self._question.drop()
            self.fault = f"{self.policy.name}: {what} did not answer"
            return otherwise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code
            self.fault = f"{self.policy.name}: {what} raised {error!r}"
            return otherwise
        if not is_sound(answer):
            self.fault = f"{self.policy.name}: {what} answered {answer!r}"
            return otherwise
        return answer
