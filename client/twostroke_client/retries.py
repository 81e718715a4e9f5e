"""When a request is sent again: one policy for the sync and the async client.

Only what is Unavailable, and only while tries and time are left. Before the first token the request
is sent anew; a stream that breaks later is resumed from its next token, so that it costs its reader
a pause and nothing else. The bound of the pause doubles each time, and the pause is drawn at random
below it, so that clients that were turned away together do not come back together. A server that
says when is heeded.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from tenacity import RetryCallState

from twostroke_client.errors import Unavailable

RESUME_PAUSE_S_MAX = 1.0
"""Upper bound of the pauses while a stream that has begun stands still."""


TIMEOUT_S_MAX = 1e9
"""Longer ones, infinity among them, mean never: gRPC would take them for past."""


class Deadline:
    """A point in time by which a call must have ended; None: never."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at: float | None = None
        if timeout_s is not None and timeout_s <= TIMEOUT_S_MAX:
            self._at = time.monotonic() + timeout_s

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
    """How often and how long to try. `attempts=1, resume_s=0` never sends a request twice."""

    attempts: int = 5
    """Of these, until the first token has come."""
    pause_s: float = 0.2
    """Upper bound of the first pause."""
    pause_s_max: float = 10.0
    """Upper bound of any pause. A server that asks for a longer one is not asked again."""
    resume_s: float = 30.0
    """A stream that has begun and breaks is tried to be resumed for so long; 0: not at all."""

    def to_begin(self, deadline: Deadline) -> _Rules:
        """What tenacity needs to know for a request of which nothing has come yet."""

        def stop(state: RetryCallState) -> bool:
            return state.attempt_number >= self.attempts or self._is_too_long(state, deadline)

        def wait(state: RetryCallState) -> float:
            return self._pause_s(state, self.pause_s_max)

        return _Rules(retry=_is_unavailable, wait=wait, stop=stop, reraise=True)

    def to_resume(self, deadline: Deadline) -> _Rules:
        """The same for a stream that has just broken."""

        def stop(state: RetryCallState) -> bool:
            end_s = (state.seconds_since_start or 0.0) + state.upcoming_sleep
            return end_s > self.resume_s or self._is_too_long(state, deadline)

        def wait(state: RetryCallState) -> float:
            return self._pause_s(state, min(RESUME_PAUSE_S_MAX, self.pause_s_max))

        return _Rules(retry=_is_unavailable, wait=wait, stop=stop, reraise=True)

    def _is_too_long(self, state: RetryCallState, deadline: Deadline) -> bool:
        pause_s = state.upcoming_sleep
        return pause_s > self.pause_s_max or not deadline.allows(pause_s)

    def _pause_s(self, state: RetryCallState, pause_s_max: float) -> float:
        # The exponent is bounded, because a float is.
        bound_s = min(pause_s_max, self.pause_s * 2 ** min(state.attempt_number - 1, 30))
        drawn_s = random.uniform(0, bound_s)
        error = _error_of(state)
        asked_s = error.retry_after_s if isinstance(error, Unavailable) else None
        return drawn_s if asked_s is None else asked_s + min(drawn_s, asked_s / 2)


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _is_unavailable(state: RetryCallState) -> bool:
    return isinstance(_error_of(state), Unavailable)
