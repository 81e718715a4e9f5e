"""Whether a service is up, seen from outside: it holds its lock, and it has made what it makes.

`python -m svc_shell.presence ROLE` exits with 0 if it is: a health check for containers that needs
no socket. Whether the whole answers requests is the front end's to say.
"""

import fcntl
import os
import sys
from pathlib import Path

from svc_wire.rundir import default_run_dir

ADDRESS_FILE = "frontend.address"

SIGNS = {"scheduler": "scheduler.sock", "executor": "ring-*"}
"""What a service makes in the runtime directory once it can be used. The executor's socket is there
earlier; its ring is made when the model is loaded. A front end writes into its lock."""

WAITING, SERVING = "waiting", "serving"
"""The second line of a front end's lock once it listens. Of one length: one replaces the other."""

FRONTENDS_MAX = 64
"""In one runtime directory."""


def service_name(role: str, number: int) -> str:
    """The name of one of several services of a role, which is that of its lock; from 1 on."""
    return role if number == 1 else f"{role}-{number}"


def role_of(name: str) -> str:
    return name.partition("-")[0]


def number_of(name: str) -> int:
    """The inverse of `service_name`; 1 for any other name."""
    number = name.partition("-")[2]
    return int(number) if number.isdecimal() else 1


def is_up(run_dir: Path, name: str) -> bool:
    """Whether the service of that name can be used by its peers: a front end listens."""
    if not is_held(run_dir / f"{name}.lock"):
        return False
    if name in SIGNS:
        return any(run_dir.glob(SIGNS[name]))
    return len(_lock_lines(run_dir, name)) > 1


def is_serving(run_dir: Path, name: str) -> bool:
    """Whether a front end takes requests."""
    return is_up(run_dir, name) and _lock_lines(run_dir, name)[1:] == [SERVING]


def holder(run_dir: Path, name: str) -> int | None:
    """The pid of the service that has this name, as it sees it itself; None if there is none."""
    lines = _lock_lines(run_dir, name)
    return int(lines[0]) if lines and is_held(run_dir / f"{name}.lock") else None


def _lock_lines(run_dir: Path, name: str) -> list[str]:
    try:
        return (run_dir / f"{name}.lock").read_text().split()
    except FileNotFoundError:
        return []


def is_held(lock: Path) -> bool:
    """Whether a process holds this lock file, in whatever container. Two who ask do not meet."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


if __name__ == "__main__":
    run_dir = Path(os.environ.get("TWOSTROKE_RUN_DIR") or default_run_dir())
    sys.exit(None if is_up(run_dir, sys.argv[1]) else f"the {sys.argv[1]} is not up in {run_dir}")
