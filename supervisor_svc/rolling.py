"""An order for all services of a role: one after the other is replaced, while the others serve."""

from collections import deque
from collections.abc import Sequence

from supervisor_svc.child import Child
from supervisor_svc.control import Restart
from supervisor_svc.replacement import Replacement
from supervisor_svc.stack import Stack


class Rolling:
    """A chain of Replacements, used like one. What is done stays done if a later one fails."""

    def __init__(self, stack: Stack, names: Sequence[str], order: Restart, now: float) -> None:
        self._stack = stack
        self._order = order
        self._began = now
        self._before = {name: stack.children[name].pid for name in names}
        self._rest = deque(names)
        self._current = self._next(now)

    @property
    def name(self) -> str:
        """Whose turn it is."""
        return self._current.name

    @property
    def extra(self) -> list[Child]:
        return self._current.extra

    @property
    def is_at_work(self) -> bool:
        return self._current.is_at_work

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
        self._current = self._next(now)
        return False

    def _next(self, now: float) -> Replacement:
        return Replacement(self._stack, self._rest.popleft(), self._order, now)

    def done(self, now: float) -> str:
        """For a person, once the order has been obeyed."""
        if self._order.checks_only:
            return f"found no fault in the options of the {self._order.role}; nothing was restarted"
        seconds = f"in {now - self._began:.1f} s"
        if len(self._before) > 1:
            return f"restarted {len(self._before)} front ends {seconds}, one after the other"
        name, before = self.name, self._before[self.name]
        restarted = f"restarted the {name} (pid {self._stack.pids[name]}, was {before}) {seconds}"
        if self._current.vacant_s is None:
            return restarted
        return f"{restarted}, of which {self._current.vacant_s:.1f} s without one"

    def abandon(self) -> None:
        self._current.abandon()
