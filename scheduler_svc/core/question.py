"""The question that a policy is being asked, for a watchdog outside of the core to look at.

The core has no clock. Whoever has one may find the same question open for too long, and raise
PolicyStalled where it stands: in the middle of the policy's code. Only there: a question is open as
long as that code runs, and what it may call of the core's (`GroupView.count_cached`) can be broken
off anywhere, since it does nothing but add to what is remembered.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class PolicyStalled(BaseException):
    """A policy does not answer. No Exception, so that policies do not catch it by accident."""


class Question:
    """One at a time; used by one thread."""

    __slots__ = ("is_open", "number")

    def __init__(self) -> None:
        self.number = 0
        self.is_open = False

    def put(self, ask: Callable[[], T]) -> T:
        """Asks, and returns the answer or raises what comes."""
        self.number += 1
        self.is_open = True
        try:
            return ask()
        finally:
            self.is_open = False

    def drop(self) -> None:
        """After PolicyStalled, which may have been raised at the very end of `put`."""
        self.is_open = False
