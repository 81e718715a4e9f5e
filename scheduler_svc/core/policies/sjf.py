"""Shortest job first: by the tokens that the client expects, or else by max_tokens.

`ageing_s_per_token=T` lets a request of n tokens wait no longer than n * T seconds behind shorter
ones that come later; without it only the core's own bound on overtaking protects long requests.
A job in the batch is not displaced by a shorter one: what was computed for it would be lost.
"""

from typing import ClassVar

from scheduler_svc.core.policies.base import Key, Policy, RequestView
from scheduler_svc.core.policies.options import Options


class Sjf(Policy):
    name: ClassVar[str] = "sjf"
    displaces: ClassVar[bool] = False

    def configure(self, options: Options) -> None:
        self._ageing_s = options.number("ageing_s_per_token", 0.0)

    def key(self, request: RequestView) -> Key:
        tokens = request.expected_tokens or request.max_tokens
        if not self._ageing_s:
            return (tokens, request.arrival)
        return (request.submitted_s + tokens * self._ageing_s, request.arrival)
