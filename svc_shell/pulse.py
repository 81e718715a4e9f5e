"""A sign of progress that others can see without asking: a file that is touched again and again.

A service touches a file of its own in the runtime directory once a second while its loop turns and,
if it has work, while the work gets on. That a process exists says nothing: it may be stopped, or
wait for a device that will never answer. Whoever watches compares what the file says from one look
to the next, and needs no clock in common.
"""

import os
from pathlib import Path

PULSE_S = 1.0
"""A service that gets on touches its file so often."""


def pulse_file(run_dir: Path, name: str) -> Path:
    """The file that the service of that name touches: its lock."""
    return run_dir / f"{name}.lock"


def beat(file: int | Path) -> None:
    """Shows progress. `file` is the descriptor or the path of a file that this process made."""
    os.utime(file)


class PulseWatch:
    """Counts looks without progress. Only what has shown a pulse can be found without one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _touched_at(path)
        self._is_armed = False
        self.looks_without = 0

    def look(self) -> None:
        """To be called every PULSE_S or less often."""
        now = _touched_at(self._path)
        if now != self._seen:
            self._seen, self._is_armed, self.looks_without = now, True, 0
        elif self._is_armed:
            self.looks_without += 1


def _touched_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
