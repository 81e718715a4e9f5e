"""An order to replace a service, from its receipt to its answer, as a state that the loop moves on.

    CHECKING ──► BESIDE  ──► STARTING ──► obeyed          scheduler, front end
    CHECKING ──► LEAVING ──► STARTING ──► obeyed          executor
    CHECKING ──► obeyed                                   if only that was ordered
       each of them ──► refused: the one that ran goes on, or one like it is started

    CHECKING    a process with the new command line looks at its options and ends at once, so that
                a wrong one disturbs nobody
    BESIDE      the new one starts beside the old one and asks it to leave when it is ready to go
                on: streams hardly pause. An old front end leaves slowly: it lets its streams finish
    LEAVING     there is not memory for two executors: the old one has to go first
    STARTING    it is in its place and has to come up

Each state has a bound. Nothing here waits: whoever owns the loop watches everybody meanwhile.
"""

from enum import Enum, auto

from supervisor_svc.arguments import with_options
from supervisor_svc.child import KILL_WAIT_S, Child, OptionsCheck
from supervisor_svc.control import Restart
from supervisor_svc.interrupts import held_back
from supervisor_svc.stack import EXIT_FAILED, EXIT_USAGE, STOP_TIMEOUT_S, Stack
from svc_shell.presence import holder, is_up, role_of


class _State(Enum):
    CHECKING = auto()
    BESIDE = auto()
    LEAVING = auto()
    STARTING = auto()
    OBEYED = auto()


class Refused(Exception):
    """The order cannot be obeyed. The text is for a person."""

    def __init__(self, text: str, exit_status: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.exit_status = exit_status


class Replacement:
    """An order for one service. `step` whenever something may have happened; `abandon` if that ends
    too early.

    The stack's child of that name is the old one until the new one has its place.
    """

    def __init__(self, stack: Stack, name: str, order: Restart, now: float) -> None:
        self._stack = stack
        self.name = name
        self._checks_only = order.checks_only
        self._before = stack.commands[name]
        self._command = with_options(self._before, order.arguments)
        self._vacant_since = now
        self.vacant_s: float | None = None
        """For how long nobody had the place; known once it has been obeyed, for others than front
        ends, whose successors listen before they go."""
        self._state = _State.CHECKING
        self._check = stack.begin(OptionsCheck, name, self._command)
        self._extra: Child | None = self._check
        """A process beside the stack's own: the check, or a new scheduler."""
        self._deadline = now + stack.config.ready_timeout_s

    @property
    def extra(self) -> list[Child]:
        """What is to be watched besides the stack's children."""
        return [self._extra] if self._extra is not None else []

    @property
    def is_at_work(self) -> bool:
        """Whether the place is its business: a check disturbs nobody, and may take minutes."""
        return self._state is not _State.CHECKING

    @property
    def is_starting(self) -> bool:
        """It can only be seen by looking how it gets on."""
        return self._state in (_State.BESIDE, _State.STARTING)

    @property
    def is_vacant(self) -> bool:
        """Whether it leaves the place with nobody in it, asked after Refused.

        An old front end may have given it up to a new one that then failed, and still be there, for
        its streams: nobody can connect, and it may take long to end.
        """
        has_left = self._state is _State.BESIDE and role_of(self.name) == "frontend"
        has_ended = self._stack.children[self.name].has_ended
        return (self.is_at_work and has_ended) or (
            has_left and holder(self._stack.run_dir, self.name) is None
        )

    def step(self, now: float) -> bool:
        """Moves on as far as possible; whether the order has been obeyed.

        Raises Refused; then its place may be vacant, and its command is the old one.
        """
        try:
            match self._state:
                case _State.CHECKING:
                    return self._await_check(now)
                case _State.BESIDE:
                    self._change_over(now)
                case _State.LEAVING:
                    self._leave(now)
                case _State.STARTING:
                    return self._start(now)
        except Refused:
            self.abandon()
            raise
        return False

    def abandon(self) -> None:
        """Ends what is not in its place; the stack is as it was, or as if the old one had died."""
        self._drop_extra()
        if self._state is _State.STARTING:
            self._stack.children[self.name].kill()
        self._stack.commands[self.name] = self._before

    def _drop_extra(self) -> None:
        for child in self.extra:
            child.kill()
            self._stack.forget(child)
        self._extra = None

    # -- the states --------------------------------------------------------------------------------

    def _await_check(self, now: float) -> bool:
        if not self._check.has_ended:
            self._bound(now, "has not checked its options")
            return False
        if self._check.status != 0:
            is_usage = self._check.status == EXIT_USAGE
            raise Refused(self._check.complaint, EXIT_USAGE if is_usage else EXIT_FAILED)
        self._drop_extra()
        if self._checks_only:
            return True
        if self.name == "executor":
            self._stack.children[self.name].ask_to_end()
            self._go(_State.LEAVING, now, STOP_TIMEOUT_S)
        else:
            command = [*self._command, "--replace"]
            self._extra = self._stack.begin(Child, self.name, command)
            self._go(_State.BESIDE, now, self._stack.config.ready_timeout_s)
        return False

    def _change_over(self, now: float) -> None:
        new = self._extra
        assert new is not None
        if new.has_ended:
            raise Refused(f"the new {self.name} {new.ending}{new.reason}")
        if not self._has_given_way(new):
            self._bound(now, "has not taken over")
            return
        with held_back():  # in nobody's place it would be killed, and its streams with it
            self._extra = None
            self._stack.put(new, self._command)
        self._vacant_since = now
        self._go(_State.STARTING, now, self._stack.config.ready_timeout_s)

    def _has_given_way(self, new: Child) -> bool:
        """Whether the old one has gone, or as a front end has no more than its streams."""
        if role_of(self.name) == "frontend":
            return holder(self._stack.run_dir, self.name) == new.pid
        return self._stack.children[self.name].has_ended

    def _leave(self, now: float) -> None:
        old = self._stack.children[self.name]
        if not old.has_ended:
            if now >= self._deadline:
                old.strike()
            if now >= self._deadline + KILL_WAIT_S:
                raise Refused(f"the old {self.name} (pid {old.pid}) cannot be ended")
            return
        self._vacant_since = now
        self._stack.launch(self.name, self._command)
        self._go(_State.STARTING, now, self._stack.config.ready_timeout_s)

    def _start(self, now: float) -> bool:
        new = self._stack.children[self.name]
        if new.has_ended:
            raise Refused(f"the new {self.name} {new.ending}{new.reason}")
        if is_up(self._stack.run_dir, self.name):
            if role_of(self.name) != "frontend":
                self.vacant_s = now - self._vacant_since
            self._state = _State.OBEYED  # now it ends with the others, in order
            return True
        self._bound(now, "is not up")
        return False

    def _go(self, state: _State, now: float, timeout_s: float) -> None:
        self._state, self._deadline = state, now + timeout_s

    def _bound(self, now: float, what: str) -> None:
        if now >= self._deadline:
            timeout_s = self._stack.config.ready_timeout_s
            raise Refused(f"the new {self.name} {what} within {timeout_s:g} s")
