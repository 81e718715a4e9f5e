"""Keeps an instance running: who dies is started again, who makes no progress is ended, orders
are obeyed.

    a service ends    ─► started again after a pause (backoff.py); too often in a row: give up
    no pulse for long ─► killed, and so the same
    Restart           ─► replaced by one with further options; if that fails, as before
    Drain             ─► `run` returns, and the instance is stopped in order

Streams outlive all of this but the end of their front end: the front ends keep what is live.
"""

import select
import time
from collections.abc import Callable
from pathlib import Path

from supervisor_svc.backoff import Backoff
from supervisor_svc.child import Child
from supervisor_svc.control import Answer, Control, Drain, Reply, Restart
from supervisor_svc.stack import ChildDied, Stack
from svc_shell.presence import is_up
from svc_shell.pulse import PULSE_S, SIGNS_OF_LIFE, PulseWatch

LOOK_S = PULSE_S
UP_LOOK_S = 0.02
RESTART_WAIT_S = 120.0
"""A service that was restarted on order has so long to come up."""


class _Care:
    """What is known of one role's service."""

    def __init__(self, run_dir: Path, role: str, restarts_max: int) -> None:
        self.backoff = Backoff(restarts_max)
        self.path = run_dir / SIGNS_OF_LIFE[role]
        self.watch = PulseWatch(self.path)
        self.due_at: float | None = None
        """When it is to be started again."""
        self.up_at: float | None = time.monotonic()
        """Since when it has been up; None: it has been started and is not up yet."""
        self.is_hung = False


class Upkeep:
    """Used once the instance is ready; to be closed when it has been stopped.

    `tell` gets a line for a person now and then.
    """

    def __init__(
        self,
        stack: Stack,
        *,
        restarts_max: int,
        hang_timeout_s: float,
        tell: Callable[[str], object],
    ) -> None:
        self._stack = stack
        self._hang_looks = hang_timeout_s / LOOK_S
        self._tell = tell
        self._care = {role: _Care(stack.run_dir, role, restarts_max) for role in stack.children}
        self._next_look = 0.0
        self._drains: list[Answer] = []

    def run(self) -> None:
        """Returns when a drain is ordered. Raises ChildDied when a service dies too often."""
        with Control(self._stack.run_dir) as control:
            while not self._drains:
                self._start_due()
                pidfds = [c.pidfd for c in self._stack.children.values() if not c.has_ended]
                orders = control.fileno()
                ready, _, _ = select.select([orders, *pidfds], [], [], self._wait_s())
                for role, child in self._stack.children.items():
                    if child.has_ended and self._care[role].due_at is None:
                        self._on_death(role, child)
                if time.monotonic() >= self._next_look:
                    self._look()
                if orders in ready and (received := control.receive()) is not None:
                    self._obey(*received)

    def close(self) -> None:
        """Lets those go who wait for the end of the drain."""
        for answer in self._drains:
            answer.close()

    def _wait_s(self) -> float:
        moments = [care.due_at for care in self._care.values() if care.due_at is not None]
        return max(0.0, min([self._next_look, *moments]) - time.monotonic())

    # -- deaths ------------------------------------------------------------------------------------

    def _on_death(self, role: str, child: Child) -> None:
        care = self._care[role]
        now = time.monotonic()
        pause_s = care.backoff.pause_s(now - care.up_at if care.up_at is not None else 0.0)
        died = ChildDied(child, deaths=care.backoff.deaths)
        if pause_s is None:
            raise died
        why = "made no progress and " if care.is_hung else ""
        self._tell(f"the {role} (pid {child.pid}) {why}{child.ending}; starting it again")
        care.due_at = time.monotonic() + pause_s

    def _start_due(self) -> None:
        for role, care in self._care.items():
            if care.due_at is not None and care.due_at <= time.monotonic():
                self._launch(role, self._stack.commands[role])

    def _launch(self, role: str, command: list[str]) -> None:
        self._stack.launch(role, command)
        self._expect(role)

    def _expect(self, role: str) -> None:
        """A new service has been started."""
        care = self._care[role]
        care.due_at, care.up_at, care.is_hung = None, None, False
        care.watch = PulseWatch(care.path)

    # -- progress ----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ends whoever has shown no pulse over so many looks.

        Looks, not seconds: when this process or the whole machine was stopped for a while, nobody
        is to blame.
        """
        self._next_look = time.monotonic() + LOOK_S
        for role, care in self._care.items():
            care.watch.look()
            if care.up_at is None and care.due_at is None and is_up(self._stack.run_dir, role):
                care.up_at = time.monotonic()
            if care.watch.looks_without > self._hang_looks and care.due_at is None:
                care.is_hung = True
                self._stack.children[role].kill()

    # -- orders ------------------------------------------------------------------------------------

    def _obey(self, order: Restart | Drain, answer: Answer) -> None:
        if isinstance(order, Drain):
            self._drains.append(answer)
            answer.give(Reply(), keep=True)
        elif order.role not in self._care:
            answer.give(Reply(f"there is no {order.role}: choose of {', '.join(self._care)}"))
        else:
            answer.give(Reply(self._restart(order)))

    def _restart(self, order: Restart) -> str:
        """Replaces a service; returns what went wrong, if anything."""
        role, before = order.role, self._stack.commands[order.role]
        self._tell(f"restarting the {role}")
        error = self._stack.replace(role, [*before, *order.arguments])
        if not error:
            self._expect(role)
            error = self._await_up(role)
            if error:
                self._stack.children[role].kill()
                self._launch(role, before)
        if error:
            self._tell(f"{error}; it stays as it was")
        return error

    def _await_up(self, role: str) -> str:
        """Waits until a new service is up; returns why it is not."""
        child, deadline = self._stack.children[role], time.monotonic() + RESTART_WAIT_S
        while not is_up(self._stack.run_dir, role):
            if child.has_ended:
                return f"the new {role} {child.ending}"
            if time.monotonic() > deadline:
                return f"the new {role} is not up after {RESTART_WAIT_S:g} s"
            time.sleep(UP_LOOK_S)
        return ""
