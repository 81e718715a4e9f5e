"""A service that was started by a supervisor goes when the supervisor goes."""

import os

from svc_wire.processes import die_with_parent

PARENT_PID = "TWOSTROKE_PARENT_PID"


def follow_parent() -> None:
    """Dies with the process that TWOSTROKE_PARENT_PID names; does nothing where it is not set."""
    if parent := os.environ.get(PARENT_PID):
        die_with_parent(int(parent))
