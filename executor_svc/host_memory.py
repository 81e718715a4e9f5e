"""How much host memory is to be had: of the machine, and of the container if it has a limit."""

from pathlib import Path

from executor_svc.errors import ExecutorError

_MACHINE = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
"""Of the container, as seen from inside (cgroup v2). On a bare machine it states no limit."""


def available_bytes(machine: Path = _MACHINE, group: Path = _GROUP) -> int:
    """Memory that can be had without the kernel's swapping or killing, as it estimates it."""
    found = _facts(machine).get("MemAvailable:")
    if found is None:
        raise ExecutorError(f"{machine} has no MemAvailable")
    return max(0, min(found << 10, _left_in_group(group, found << 10)))


def _left_in_group(group: Path, otherwise: int) -> int:
    """What the limit leaves. Files that are only cached give way, so they do not count as used."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return otherwise
        used = int((group / "memory.current").read_text())
        cached = _facts(group / "memory.stat").get("inactive_file", 0)
    except FileNotFoundError:
        return otherwise
    return int(limit) - used + cached


def _facts(path: Path) -> dict[str, int]:
    """The file's lines: a name, a number, perhaps a unit."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}
