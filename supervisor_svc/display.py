"""What a person sees while an instance starts: a line that changes, or a line for each event."""

import time

from rich.console import Console

from supervisor_svc.stack import Stack


def start(stack: Stack, err: Console) -> str:
    """Starts the stack and waits until it serves; returns its address. Raises StackError."""
    started_s = time.monotonic()
    stack.start()
    if err.is_terminal:
        with err.status(_line(stack, set(), started_s)) as status:
            return stack.wait_ready(lambda up: status.update(_line(stack, up, started_s)))
    seen: set[str] = set()

    def report(up: set[str]) -> None:
        for name in sorted(up - seen):
            seen.add(name)
            err.print(f"{_shown(name)} is up after {time.monotonic() - started_s:.1f} s")

    return stack.wait_ready(report)


def _line(stack: Stack, up: set[str], started_s: float) -> str:
    states = [f"{_shown(name)} {'up' if name in up else '...'}" for name in stack.commands]
    return f"starting · {' · '.join(states)} · {time.monotonic() - started_s:.0f} s"


def _shown(name: str) -> str:
    """For a person: front end, front end 2, ..."""
    return name.replace("frontend", "front end").replace("-", " ")
