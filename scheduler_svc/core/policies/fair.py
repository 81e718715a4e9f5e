"""Fair shares among tenants: the virtual token counter.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): each tenant has a
counter of the service that it got, prompt tokens times 1 and output tokens times 2, divided by its
weight. The waiting tenant with the smallest counter goes next. A tenant that comes back after it
had nothing waiting is lifted to the smallest counter of those that wait (if nobody waits, to that
of the tenant that was served last), less `credit` (32,768): idling earns so much and no more.

With a credit of 0, as published, a tenant that asks for little is one of two equals from the moment
it comes beside a flood, and its prompts are read at half the speed. With one they go first until it
is used up. In the long run nobody gets more than an equal share and one credit.

`weight.NAME=3` gives tenant NAME three times the share of others. When memory runs out, the tenant
that had the most gives way: its latest request.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import ClassVar

from scheduler_svc.core.policies.base import GroupView, Key, Policy, RequestView, RunningView
from scheduler_svc.core.policies.options import Options

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
CREDIT = 32_768.0
WEIGHT_MIN = 1e-3
TENANTS_MAX = 10_000
"""Counters that are kept. Who is forgotten, the one heard of longest ago, starts like a newcomer:
that is what being lifted does to it anyway, but for what it had beyond the others."""


class Fair(Policy):
    name: ClassVar[str] = "fair"
    displaces: ClassVar[bool] = False
    rank_is_kept: ClassVar[bool] = True

    def configure(self, options: Options) -> None:
        self._weights = options.numbers("weight", least=WEIGHT_MIN)
        self._credit = options.number("credit", CREDIT)
        self._served: OrderedDict[str, float] = OrderedDict()
        self._last = ""

    def key(self, request: RequestView) -> Key:
        return (request.arrival,)

    def group(self, request: RequestView) -> str:
        return request.tenant

    def rank(self, group: GroupView) -> Key:
        return (self._counter(group.name),)

    def victim(self, running: Sequence[RunningView]) -> int:
        return max(range(len(running)), key=lambda i: (self._counter(running[i].request.tenant), i))

    def waits(self, group: str, others: Collection[str]) -> None:
        floor = min(map(self._counter, others)) if others else self._counter(self._last)
        self._set(group, max(self._counter(group), floor - self._credit))

    def served(self, group: str, prompt_tokens: int, output_tokens: int) -> None:
        service = PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
        self._set(group, self._counter(group) + service / self._weights.get(group, 1.0))
        self._last = group

    def _counter(self, tenant: str) -> float:
        return self._served.get(tenant, 0.0)

    def _set(self, tenant: str, counter: float) -> None:
        self._served[tenant] = counter
        self._served.move_to_end(tenant)
        if len(self._served) > TENANTS_MAX:
            self._served.popitem(last=False)
