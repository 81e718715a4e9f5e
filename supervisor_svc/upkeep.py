"""Keeps an instance running: who dies is started again, who makes no progress is ended, orders
are obeyed. One loop watches everybody at every moment; what takes time is a state of it.

    a service ends    ─► started again after a pause (backoff.py); too often in a row: give up
    no pulse for long ─► killed, and so the same
    Restart           ─► replaced by one with further options (replacement.py), several of a role
                         one after the other; if that cannot be, it stays as it was, and whoever
                         gave the order is told why
    Drain             ─► `run` returns, and the instance is stopped in order

Streams outlive all of this: the front ends keep what is live, and the clients what they have got.
"""

import select
import time
from collections.abc import Callable

from supervisor_svc.arguments import refusal
from supervisor_svc.backoff import Backoff
from supervisor_svc.control import Answer, Control, Drain, Reply, Restart
from supervisor_svc.interrupts import held_back
from supervisor_svc.replacement import Refused
from supervisor_svc.rolling import Rolling
from supervisor_svc.stack import EXIT_USAGE, ChildDied, Stack
from svc_shell.presence import is_up, role_of
from svc_shell.pulse import PULSE_S, PulseWatch, pulse_file

LOOK_S = PULSE_S
UP_LOOK_S = 0.02
"""While somebody waits for a service to come up."""

REPLACED_HANG_S = 5.0
"""One that hangs is what a restart is ordered for: its successor would wait for it in vain."""


class _Life:
    """What is known of one process."""

    def __init__(self, stack: Stack, name: str, *, up_at: float | None = None) -> None:
        self.child = stack.children[name]
        self.watch = PulseWatch(pulse_file(stack.run_dir, name))
        self.up_at = up_at
        """Since when it has been up; None: it has been started and is not up yet."""
        self.is_hung = False

    def lived_s(self, now: float) -> float:
        """How long it was up. The time that it took to get there is no merit of it."""
        return now - self.up_at if self.up_at is not None else 0.0


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
        now = time.monotonic()
        self._stack = stack
        self._hang_looks = hang_timeout_s / LOOK_S
        self._tell = tell
        self._lives = {name: _Life(stack, name, up_at=now) for name in stack.children}
        self._backoffs = {name: Backoff(restarts_max) for name in stack.children}
        self._due_at: dict[str, float] = {}
        """When those that have died are to be started again."""
        self._orders: dict[str, tuple[Rolling, Answer]] = {}
        """By role; all its services are replaced, one after the other."""
        self._next_look = 0.0
        self._drains: list[Answer] = []

    def run(self) -> None:
        """Returns when a drain is ordered. Raises ChildDied when a service dies too often."""
        with Control(self._stack.run_dir) as control:
            try:
                while not self._drains:
                    if self._wait(control) and (received := control.receive()) is not None:
                        self._obey(*received)
                    self._turn(time.monotonic())
            finally:
                self._abandon_orders()

    def close(self) -> None:
        """Lets those go who wait for the end of the drain."""
        for answer in self._drains:
            answer.close()

    def _wait(self, control: Control) -> bool:
        """Returns when something may have happened; whether somebody gives an order."""
        extra = [child for order, _ in self._orders.values() for child in order.extra]
        everybody = [*self._stack.children.values(), *self._stack.leaving, *extra]
        pidfds = [child.pidfd for child in everybody if not child.has_ended]
        in_turn = self._in_turn
        due = [at for name, at in self._due_at.items() if name not in in_turn]
        moments = [self._next_look, *due]
        timeout_s = max(0.0, min(moments) - time.monotonic())
        if any(order.is_starting for order, _ in self._orders.values()):
            timeout_s = min(timeout_s, UP_LOOK_S)
        orders = control.fileno()
        ready, _, _ = select.select([orders, *pidfds], [], [], timeout_s)
        return orders in ready

    @property
    def _in_turn(self) -> set[str]:
        """The services that are being replaced; whoever does that starts them, too."""
        return {order.name for order, _ in self._orders.values() if order.is_at_work}

    def _turn(self, now: float) -> None:
        self._advance_orders(now)
        self._stack.see_off(now)
        in_turn = self._in_turn
        for name, child in self._stack.children.items():
            if self._lives[name].child is not child:
                self._lives[name] = _Life(self._stack, name)
                self._due_at.pop(name, None)
            elif child.has_ended and name not in self._due_at and name not in in_turn:
                self._on_death(name, now)
        for name in [name for name, due_at in self._due_at.items() if due_at <= now]:
            if name not in in_turn:
                self._launch(name)
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            self._look(now)

    # -- deaths ------------------------------------------------------------------------------------

    def _on_death(self, name: str, now: float) -> None:
        life, backoff = self._lives[name], self._backoffs[name]
        pause_s = backoff.pause_s(life.lived_s(now))
        if pause_s is None:
            raise ChildDied(life.child, deaths=backoff.deaths)
        why = "made no progress and " if life.is_hung else ""
        died = f"the {name} (pid {life.child.pid}) {why}{life.child.ending}{life.child.reason}"
        self._tell(f"{died}; starting it again")
        self._due_at[name] = now + pause_s

    def _launch(self, name: str) -> None:
        self._stack.launch(name, self._stack.commands[name])
        self._lives[name] = _Life(self._stack, name)
        self._due_at.pop(name, None)

    # -- progress ----------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Ends whoever has shown no pulse over so many looks.

        Looks, not seconds: when this process or the whole machine was stopped for a while, nobody
        is to blame.
        """
        for name, life in self._lives.items():
            if life.child.has_ended:
                continue
            life.watch.look()
            if life.up_at is None and is_up(self._stack.run_dir, name):
                life.up_at = now
            if life.watch.looks_without > self._patience(name):
                life.is_hung = True
                life.child.strike()

    def _patience(self, name: str) -> float:
        """In looks. Less where a successor stands beside it and waits for its place."""
        if name in self._in_turn and role_of(name) != "executor":
            return min(self._hang_looks, REPLACED_HANG_S / LOOK_S)
        return self._hang_looks

    # -- orders ------------------------------------------------------------------------------------

    def _obey(self, order: Restart | Drain, answer: Answer) -> None:
        if isinstance(order, Drain):
            self._drains.append(answer)
            answer.give(Reply(), keep=True)
        elif not (names := self._stack.names_of(order.role)):
            roles = ", ".join(dict.fromkeys(map(role_of, self._lives)))
            error = f"there is no {order.role}: choose of {roles}"
            answer.give(Reply(error=error, exit_status=EXIT_USAGE))
        elif fault := refusal(order.role, order.arguments):
            answer.give(Reply(error=fault, exit_status=EXIT_USAGE))
        elif order.role in self._orders:
            answer.give(Reply(error=f"the {order.role} is being replaced already"))
        else:
            if not order.checks_only:
                self._tell(f"restarting the {order.role}")
            with held_back():  # whoever gave it is told how it ends, also if that is now
                rolling = Rolling(self._stack, names, order, time.monotonic())
                self._orders[order.role] = rolling, answer

    def _advance_orders(self, now: float) -> None:
        for role, (rolling, answer) in list(self._orders.items()):
            try:
                if not rolling.step(now):
                    continue
                reply = Reply(done=rolling.done(now))
                self._tell(reply.done)
            except Refused as refused:
                then = "is started again" if rolling.is_vacant else "stays"
                error = f"{refused}; the {rolling.name} {then} as it was"
                reply = Reply(error=error, exit_status=refused.exit_status)
                self._tell(error)
                if rolling.is_vacant:
                    self._launch(rolling.name)
            del self._orders[role]
            answer.give(reply)

    def _abandon_orders(self) -> None:
        for rolling, answer in self._orders.values():
            rolling.abandon()
            answer.give(Reply(error="the instance is shutting down"))
        self._orders.clear()
