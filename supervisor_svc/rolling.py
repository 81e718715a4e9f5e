"""An order for all services of a role: one after the other is replaced, while the others serve."""

from collections import deque
from collections.abc import Sequence

from supervisor_svc.child import Child
from supervisor_svc.replacement import Replacement
from supervisor_svc.stack import Stack


class Rolling:
    """A chain of Replacements, used like one. What is done stays done if a later one fails."""

    def __init__(
        self, stack: Stack, names: Sequence[str], arguments: Sequence[str], now: float
    ) -> None:
        first, *rest = names
        self._stack = stack
        self._arguments = arguments
        self._rest = deque(rest)
        self._current = Replacement(stack, first, arguments, now)

    @property
    def name(self) -> str:
        """Whose turn it is."""
        return self._current.name

    @property
    def extra(self) -> list[Child]:
        return self._current.extra

    @property
    def is_starting(self) -> bool:
        return self._current.is_starting

    @property
    def is_vacant(self) -> bool:
        return self._current.is_vacant

    def step(self, now: float) -> bool:
        """Whether all of the order has been obeyed. Raises Refused."""
        if not self._current.step(now):
            return False
        if not self._rest:
            return True
        self._current = Replacement(self._stack, self._rest.popleft(), self._arguments, now)
        return False

    def abandon(self) -> None:
        self._current.abandon()
