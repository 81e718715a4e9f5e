"""The services of one instance as a unit: started together, stopped in order.

    start   all at once; each waits for its peers by itself. Front ends but the first one follow
            when that one listens, since they share its port
    ready   when the front ends' health service says SERVING, and each of them does
    stop    front ends (drain their streams) ─► scheduler ─► executor
    death   before all are ready, it ends the instance; afterwards see upkeep.py

A front end that drains needs the two behind it, so they are stopped after it. Services go by the
name of their lock, which is their role, or frontend-2, frontend-3, ... for further front ends.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from supervisor_svc.child import Child, see_end, wait_for_end
from supervisor_svc.interrupts import held_back
from supervisor_svc.readiness import Readiness
from svc_shell.presence import role_of, service_name

STOP_ORDER = ("frontend", "scheduler", "executor")
STOP_TIMEOUT_S = 10.0
"""For a service that has nothing left to drain."""
LOOK_INTERVAL_S = 0.1


EXIT_FAILED, EXIT_USAGE = 1, 2

Kind = TypeVar("Kind", bound=Child)


class StackError(Exception):
    """The instance cannot go on. The text is for a person."""

    exit_status = EXIT_FAILED


class ChildDied(StackError):
    """A service that was given wrong options passes its exit status on."""

    def __init__(self, child: Child, deaths: int = 1) -> None:
        if child.status == EXIT_USAGE:
            self.exit_status = EXIT_USAGE
        in_a_row = f", which was death {deaths} in a row" if deaths > 1 else ""
        super().__init__(
            f"the {child.name} (pid {child.pid}) {child.ending}{in_a_row}{child.reason}"
        )


class NotReadyInTime(StackError):
    pass


@dataclass(frozen=True, slots=True)
class StackConfig:
    """What was asked for."""

    commands: Mapping[str, Sequence[str]]
    """The command line of each role's service."""
    frontends: int = 1
    ready_timeout_s: float = 300.0
    drain_timeout_s: float = 30.0

    def drain_s(self, name: str) -> float:
        """How long a service may take to finish before it ends."""
        return self.drain_timeout_s if role_of(name) == "frontend" else 0.0


class Stack:
    """The running services. Leaving its `with` block stops them; a second Ctrl-C kills them."""

    def __init__(self, run_dir: Path, config: StackConfig) -> None:
        self.config = config
        self.run_dir = run_dir
        self.commands = _named(config)
        """By name, of the services that run; they may change when one is restarted."""
        self.children: dict[str, Child] = {}
        """By name, the last one that was started."""
        self.leaving: dict[Child, float] = {}
        """Front ends that others have replaced and that let their streams finish: until when."""
        self._begun: set[Child] = set()
        """All that were started and not forgotten yet, also those that are in nobody's place: none
        outlives the `with` block."""
        self._is_shared = False
        self._stop_began = False

    @property
    def pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in self.children.items()}

    def names_of(self, role: str) -> list[str]:
        """Those of a role."""
        return [name for name in self.commands if role_of(name) == role]

    def start(self) -> None:
        first, *_ = self.names_of("frontend")
        for name, command in self.commands.items():
            if name == first or role_of(name) != "frontend":
                self.launch(name, command)

    def launch(self, name: str, command: list[str]) -> None:
        """Starts a service, whose predecessor must have ended or given up its name."""
        self.put(self.begin(Child, name, command), command)

    def begin(self, kind: type[Kind], name: str, command: Sequence[str]) -> Kind:
        """Starts a process that has no place yet. It is to be forgotten when it has ended."""
        with held_back():  # a process that nobody has noted would outlive the instance
            child = kind(name, command)
            self._begun.add(child)
        return child

    def forget(self, child: Child) -> None:
        """Frees what is kept for a process that has ended."""
        self._begun.discard(child)
        child.close()

    def put(self, child: Child, command: list[str]) -> None:
        """Puts a service that was started with `command` in the place of one that has ended, or
        that does so in its own time."""
        before = self.children.get(child.name)
        self.children[child.name], self.commands[child.name] = child, command
        if before is None:
            return
        if before.has_ended:
            self.forget(before)
        else:
            wait_s = self.config.drain_s(child.name) + STOP_TIMEOUT_S
            self.leaving[before] = time.monotonic() + wait_s

    def see_off(self, now: float) -> None:
        """Forgets those that have left, and ends those that take too long."""
        for child, until in list(self.leaving.items()):
            if child.has_ended:
                del self.leaving[child]
                self.forget(child)
            elif now > until:
                child.strike()

    def wait_ready(self, report: Callable[[set[str]], None]) -> str:
        """The front ends' address, once the instance serves. `report` gets who is up, by name.

        Raises ChildDied, or NotReadyInTime after `ready_timeout_s`.
        """
        deadline = time.monotonic() + self.config.ready_timeout_s
        with Readiness(self.run_dir, list(self.commands)) as readiness:
            while True:
                if (address := readiness.address()) is not None:
                    self._share(address)
                    if readiness.is_serving(address):
                        return address
                report(readiness.signs())
                self._raise_if_died(timeout_s=LOOK_INTERVAL_S)
                if time.monotonic() > deadline:
                    raise NotReadyInTime(self._lateness(readiness.signs()))

    def _share(self, address: str) -> None:
        """Has all front ends, and those that are started later, listen where the first one does,
        whatever port that took."""
        if self._is_shared:
            return
        self._is_shared = True
        for name in self.names_of("frontend"):
            self.commands[name] += ["--port", address.rpartition(":")[2], "--share-port"]
            if name not in self.children:
                self.launch(name, self.commands[name])

    def stop(self, *, drain: bool = True) -> list[str]:
        """Stops what runs, in order; returns the names of those that had to be killed."""
        self._stop_began = True
        killed = []
        for role in STOP_ORDER:
            running = [child for child in self._of(role) if not child.has_ended]
            for child in running:
                if not drain:
                    child.hurry()
                child.ask_to_end()
            leaving = self.leaving if role == "frontend" else ()
            drain_s = self.config.drain_s(role) if drain else 0.0
            late = see_end([*running, *leaving], drain_s + STOP_TIMEOUT_S)
            killed += [child.name for child in late]
        return killed

    def _of(self, role: str) -> list[Child]:
        return [child for name, child in self.children.items() if role_of(name) == role]

    def _raise_if_died(self, timeout_s: float | None) -> None:
        for child in wait_for_end(self.children.values(), timeout_s):
            raise ChildDied(child)

    def _lateness(self, up: set[str]) -> str:
        missing = " and ".join(name for name in self.commands if name not in up)
        state = f"no sign of the {missing}" if missing else "all are up, but not ready"
        return f"not ready after {self.config.ready_timeout_s:g} s: {state}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._stop_began:  # it was interrupted otherwise: what is left is killed
                self.stop(drain=False)
        finally:
            with held_back():  # there is nothing more that an interrupt could ask for
                self._kill_all()

    def _kill_all(self) -> None:
        for child in self._begun:
            child.strike()
        for child in list(self._begun):
            child.kill()
            self.forget(child)


def _named(config: StackConfig) -> dict[str, list[str]]:
    """The commands by the names of the services."""
    named = {role: list(command) for role, command in config.commands.items()}
    for number in range(1, config.frontends + 1):
        name = service_name("frontend", number)
        named[name] = [*config.commands["frontend"], "--name", name]
    return named
