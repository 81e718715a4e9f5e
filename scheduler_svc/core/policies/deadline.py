"""Earliest deadline first, and no work for what would be late anyway.

A request is refused if it could not be done in time even if it were the next to start: its prompt
and the tokens that it expects, at the pace of the executor, `margin` times (1.0). Requests without
a deadline come after all that have one. Nobody in the batch is displaced: near the end of an answer
that throws away more than it wins.
"""

from typing import ClassVar

from scheduler_svc.core.policies.base import Key, LoadView, Policy, RequestView
from scheduler_svc.core.policies.options import Options


class Deadline(Policy):
    name: ClassVar[str] = "deadline"
    displaces: ClassVar[bool] = False

    def configure(self, options: Options) -> None:
        self._margin = options.number("margin", 1.0)

    def key(self, request: RequestView) -> Key:
        return (request.deadline_s, request.arrival)

    def refuse(self, request: RequestView, load: LoadView) -> str | None:
        tokens = request.expected_tokens or request.max_tokens
        needed_s = request.prompt_tokens * load.prompt_token_s + tokens * load.step_s
        left_s = request.deadline_s - load.now_s
        if needed_s * self._margin <= left_s:
            return None
        return f"it would take {needed_s:.2f} s, and the deadline is in {left_s:.2f} s"
