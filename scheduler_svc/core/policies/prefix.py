"""Longest cached prefix first: serve what is in the prefix cache before it is evicted.

Looking at every waiting request whenever a place is free would cost more the longer the queue, so
requests are dealt out to `window` groups in turn, first come, first served within each: the choice
is among the first of each group, which are the eldest of all or nearly so.
"""

from typing import ClassVar

from scheduler_svc.core.policies.base import GroupView, Key, Policy, RequestView
from scheduler_svc.core.policies.options import Options


class Prefix(Policy):
    name: ClassVar[str] = "prefix"
    displaces: ClassVar[bool] = False

    def configure(self, options: Options) -> None:
        self._window = int(options.number("window", 32, least=1))

    def key(self, request: RequestView) -> Key:
        return (request.arrival,)

    def group(self, request: RequestView) -> str:
        return str(request.arrival % self._window)

    def rank(self, group: GroupView) -> Key:
        return (-group.count_cached(),)
