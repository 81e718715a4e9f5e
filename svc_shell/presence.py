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

SIGNS = {"scheduler": "scheduler.sock", "frontend": ADDRESS_FILE, "executor": "ring-*"}
"""What a service makes in the runtime directory once it can be used. The executor's socket is there
earlier; its ring is made when the model is loaded."""


def is_up(run_dir: Path, role: str) -> bool:
    """Whether the service of `role` can be used by its peers. A front end holds no lock."""
    present = any(run_dir.glob(SIGNS[role]))
    return present and (role == "frontend" or is_held(run_dir / f"{role}.lock"))


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
