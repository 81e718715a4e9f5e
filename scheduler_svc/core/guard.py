"""A policy under guard: every answer is checked, and the first wrong one takes its word away.

From then on, until the scheduler puts another policy in force, each question has the answer that
first-come-first-served gives. So a question always has an answer, in the middle of a plan too.

This is the only place where a policy's code runs, once it is made. Whatever it does is over when
the question is: what comes out is a plain value (see `answers`) or a fault, and never an exception.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from scheduler_svc.core import answers
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
        self.name = self._shown(kind)
        """The policy's name, as it was when it came."""
        self.name = self._ask("name", lambda: policy.name, self.name, answers.name)
        self.groups = kind.group is not Policy.group
        """Whether requests may wait in more than one group."""
        displaces = self._ask("displaces", lambda: kind.displaces, True, bool)
        self.displaces = displaces and not self.groups
        self._rank_is_kept = self._ask("rank_is_kept", lambda: kind.rank_is_kept, False, bool)
        self.counts = kind.served is not Policy.served
        """Whether the policy wants to know what was served."""
        self.picks_victims = kind.victim is not Policy.victim

    @property
    def rank_is_kept(self) -> bool:
        """Whether what `rank` answered holds until the policy is told something of that group."""
        return self._rank_is_kept and not self.fault

    def distrust(self, reason: str) -> None:
        """Takes its word away for something that is wrong with no single answer."""
        self.fault = self.fault or f"{self.name}: {reason}"

    def key(self, request: RequestView) -> Key:
        arrival = request.arrival
        take = partial(answers.key, arrival=arrival)
        return self._ask("key", lambda: self.policy.key(request), (arrival,), take)

    def group(self, request: RequestView) -> str:
        return self._ask("group", lambda: self.policy.group(request), "", answers.text)

    def rank(self, group: GroupView) -> Key:
        return self._ask("rank", lambda: self.policy.rank(group), (), answers.rank)

    def refuse(self, request: RequestView, load: LoadView) -> str | None:
        return self._ask("refuse", lambda: self.policy.refuse(request, load), None, answers.refusal)

    def piece(self, request: RequestView, wanted: int, room: int) -> int:
        most = min(wanted, room)
        take = partial(answers.count, least=1, most=most)
        return self._ask("piece", lambda: self.policy.piece(request, wanted, room), most, take)

    def victim(self, running: Sequence[RunningView]) -> int:
        last = len(running) - 1
        take = partial(answers.count, least=0, most=last)
        return self._ask("victim", lambda: self.policy.victim(running), last, take)

    def waits(self, group: str, others: Collection[str]) -> None:
        self._ask("waits", lambda: self.policy.waits(group, others), None, answers.nothing)

    def served(self, group: str, prompt_tokens: int, output_tokens: int) -> None:
        def tell() -> None:
            self.policy.served(group, prompt_tokens, output_tokens)

        self._ask("served", tell, None, answers.nothing)

    def _ask(
        self, what: str, ask: Callable[[], object], otherwise: T, take: Callable[[object], T]
    ) -> T:
        """What `take` makes of the answer; `otherwise` if there is none that can be used."""
        if self.fault:
            return otherwise
        try:
            return self._question.put(lambda: take(ask()))
        except PolicyStalled:
            self._question.drop()
            said = "did not answer in time"
        except answers.Unusable as wrong:
            said = f"answered {self._shown(wrong, str)}"
        except BaseException as error:  # noqa: BLE001 - somebody else's code, whatever it raises
            said = f"raised {self._shown(error)}"
        self.fault = f"{self.name}: {what} {said}"
        return otherwise

    def _shown(self, thing: object, by: Callable[[object], str] = repr) -> str:
        try:
            return self._question.put(lambda: answers.shown(thing, by))
        except PolicyStalled:
            self._question.drop()
            return "what takes too long to show"
