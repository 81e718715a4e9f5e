"""What a person sees while an instance starts: a line that changes, or a line for each event."""

import time

from rich.console import Console

from supervisor_svc.stack import Stack
from svc_shell.presence import SIGNS

NAMES = {"scheduler": "scheduler", "frontend": "front end", "executor": "executor"}


def start(stack: Stack, err: Console) -> str:
    """Starts the stack and waits until it serves; returns its address. Raises StackError."""
    started_s = time.monotonic()
    stack.start()
    if err.is_terminal:
        with err.status(_line(set(), started_s)) as status:
            return stack.wait_ready(lambda up: status.update(_line(up, started_s)))
    seen: set[str] = set()

    def report(up: set[str]) -> None:
        for role in sorted(up - seen):
            seen.add(role)
            err.print(f"{NAMES[role]} is up after {time.monotonic() - started_s:.1f} s")

    return stack.wait_ready(report)


def _line(up: set[str], started_s: float) -> str:
    states = [f"{NAMES[role]} {'up' if role in up else '...'}" for role in SIGNS]
    return f"starting · {' · '.join(states)} · {time.monotonic() - started_s:.0f} s"
