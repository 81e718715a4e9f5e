"""When a request is sent again: one policy for the sync and the async client.

Only what is Unavailable, only before the first token, and only while attempts and time are left.
The bound of the pause doubles each time, and the pause is drawn at random below it, so that clients
that were turned away together do not come back together. A server that says when is heeded.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from tenacity import AsyncRetrying, RetryCallState, Retrying

from twostroke_client.errors import Unavailable


class Deadline:
    """A point in time by which a call must have ended; None: never."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        """Seconds until then, 0 if it has passed."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def allows(self, pause_s: float) -> bool:
        """Whether there is time left after a pause."""
        left_s = self.left_s()
        return left_s is None or pause_s < left_s


class _Rules(TypedDict):
    retry: Callable[[RetryCallState], bool]
    wait: Callable[[RetryCallState], float]
    stop: Callable[[RetryCallState], bool]
    reraise: bool


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to try. `attempts=1` never sends a request twice."""

    attempts: int = 5
    pause_s: float = 0.2
    """Upper bound of the first pause."""
    pause_s_max: float = 10.0
    """Upper bound of any pause. A server that asks for a longer one is not asked again."""

    def retrying(self, deadline: Deadline) -> Retrying:
        return Retrying(**self._rules(deadline))

    def async_retrying(self, deadline: Deadline) -> AsyncRetrying:
        return AsyncRetrying(**self._rules(deadline))

    def _rules(self, deadline: Deadline) -> _Rules:
        def stop(state: RetryCallState) -> bool:
            pause_s = state.upcoming_sleep
            exhausted = state.attempt_number >= self.attempts or pause_s > self.pause_s_max
            return exhausted or not deadline.allows(pause_s)

        return _Rules(retry=_is_unavailable, wait=self._pause_s, stop=stop, reraise=True)

    def _pause_s(self, state: RetryCallState) -> float:
        bound_s = min(self.pause_s_max, self.pause_s * 2 ** (state.attempt_number - 1))
        drawn_s = random.uniform(0, bound_s)
        error = _error_of(state)
        asked_s = error.retry_after_s if isinstance(error, Unavailable) else None
        return drawn_s if asked_s is None else asked_s + min(drawn_s, asked_s / 2)


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _is_unavailable(state: RetryCallState) -> bool:
    return isinstance(_error_of(state), Unavailable)
