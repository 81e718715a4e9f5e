"""The question that a policy is being asked, for a watchdog outside of the core to look at.

The core decides nothing by a clock. Whoever has one may find that the answers of a turn take too
long, and raise PolicyStalled where it stands: in the middle of the policy's code. Only there: a
question is open as long as that code runs, and what it may call of the core's
(`GroupView.count_cached`) can be broken off anywhere, since it does nothing but add to what is
remembered.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ANSWER_S_MAX = 1.0
"""No answer counts for more. A watchdog ends it before; else the process was stopped meanwhile."""


class PolicyStalled(BaseException):
    """A policy does not answer. No Exception, so that policies do not catch it by accident."""


class Question:
    """One at a time; used by one thread. Times are seconds on the clock that it is given."""

    __slots__ = ("_began_s", "_clock_s", "_took_before_s", "is_open", "took_s", "turn")

    def __init__(self, clock_s: Callable[[], float] = lambda: 0.0) -> None:
        """Without a clock that goes, answers take no time."""
        self._clock_s = clock_s
        self._began_s = self._took_before_s = 0.0
        self.is_open = False
        self.took_s = 0.0
        """What all answers took, each at most ANSWER_S_MAX."""
        self.turn = 0

    def put(self, ask: Callable[[], T]) -> T:
        """Asks, and returns the answer or raises what comes."""
        self._began_s = self._clock_s()
        self.is_open = True
        try:
            return ask()
        finally:
            self.is_open = False
            self.took_s += min(self._clock_s() - self._began_s, ANSWER_S_MAX)

    def drop(self) -> None:
        """After PolicyStalled, which may have been raised at the very end of `put`."""
        self.is_open = False

    def begin_turn(self) -> None:
        """Whoever asks has done something else meanwhile."""
        self.turn += 1
        self._took_before_s = self.took_s

    @property
    def turn_took_s(self) -> float:
        """What the answers of this turn took, so far."""
        open_s = self._clock_s() - self._began_s if self.is_open else 0.0
        return self.took_s - self._took_before_s + open_s
