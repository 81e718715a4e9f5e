"""The services of one instance as a unit: started together, stopped in order.

    start   all at once; each waits for its peers by itself
    ready   when the front end's health service says SERVING
    stop    front end (drains its streams) ─► scheduler ─► executor
    death   before all are ready, it ends the instance; afterwards see upkeep.py

A front end that drains needs the two behind it, so they are stopped after it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from supervisor_svc.child import Child, wait_for_end
from supervisor_svc.readiness import Readiness

STOP_ORDER = ("frontend", "scheduler", "executor")
STOP_TIMEOUT_S = 10.0
"""For a service that has nothing left to drain."""
LOOK_INTERVAL_S = 0.1


EXIT_FAILED, EXIT_USAGE = 1, 2


class StackError(Exception):
    """The instance cannot go on. The text is for a person."""

    exit_status = EXIT_FAILED


class ChildDied(StackError):
    """A service that was given wrong options passes its exit status on."""

    def __init__(self, child: Child, deaths: int = 1) -> None:
        if child.status == EXIT_USAGE:
            self.exit_status = EXIT_USAGE
        text = f"the {child.role} (pid {child.pid}) {child.ending}"
        super().__init__(f"{text}, which was death {deaths} in a row" if deaths > 1 else text)


class NotReadyInTime(StackError):
    pass


@dataclass(frozen=True, slots=True)
class StackConfig:
    """What was asked for."""

    commands: Mapping[str, Sequence[str]]
    """The command line of each role's service."""
    ready_timeout_s: float = 300.0
    drain_timeout_s: float = 30.0


class Stack:
    """The running services. Leaving its `with` block stops them; a second Ctrl-C kills them."""

    def __init__(self, run_dir: Path, config: StackConfig) -> None:
        self.config = config
        self.run_dir = run_dir
        self.commands = {role: list(command) for role, command in config.commands.items()}
        """Of the services that run; they may change when one is restarted."""
        self.children: dict[str, Child] = {}
        """Of each role the last one that was started."""
        self._stop_began = False

    @property
    def pids(self) -> dict[str, int]:
        return {role: child.pid for role, child in self.children.items()}

    def start(self) -> None:
        for role, command in self.commands.items():
            self.launch(role, command)

    def launch(self, role: str, command: list[str]) -> None:
        """Starts a service, whose predecessor must have ended."""
        self.put(Child(role, command), command)

    def put(self, child: Child, command: list[str]) -> None:
        """Puts a service that was started with `command` in the place of one that has ended."""
        before = self.children.get(child.role)
        self.children[child.role], self.commands[child.role] = child, command
        if before is not None:
            before.close()

    def wait_ready(self, report: Callable[[set[str]], None]) -> str:
        """The front end's address, once the instance serves. `report` gets the roles that are up.

        Raises ChildDied, or NotReadyInTime after `ready_timeout_s`.
        """
        deadline = time.monotonic() + self.config.ready_timeout_s
        with Readiness(self.run_dir) as readiness:
            while not readiness.is_serving():
                report(readiness.signs())
                self._raise_if_died(timeout_s=LOOK_INTERVAL_S)
                if time.monotonic() > deadline:
                    raise NotReadyInTime(self._lateness(readiness.signs()))
            address = readiness.address()
        assert address is not None, "it was asked there"
        # One that is started again must be found where the first was, whatever port that took.
        self.commands["frontend"] += ["--port", address.rpartition(":")[2]]
        return address

    def stop(self, *, drain: bool = True) -> list[str]:
        """Stops what runs, in order; returns the roles that had to be killed."""
        self._stop_began = True
        killed = []
        for role in STOP_ORDER:
            child = self.children.get(role)
            if child is None or child.has_ended:
                continue
            if not drain:
                child.hurry()
            drain_s = self.config.drain_timeout_s if drain and role == "frontend" else 0.0
            if not child.stop(drain_s + STOP_TIMEOUT_S):
                killed.append(role)
        return killed

    def _raise_if_died(self, timeout_s: float | None) -> None:
        for child in wait_for_end(self.children.values(), timeout_s):
            raise ChildDied(child)

    def _lateness(self, up: set[str]) -> str:
        missing = " and ".join(role for role in STOP_ORDER if role not in up)
        state = f"no sign of the {missing}" if missing else "all are up, but not ready"
        return f"not ready after {self.config.ready_timeout_s:g} s: {state}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._stop_began:  # it was interrupted otherwise: what is left is killed
                self.stop(drain=False)
        finally:
            for child in self.children.values():
                child.kill()
                child.close()
