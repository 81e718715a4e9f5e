"""A service that was started by a supervisor goes when the supervisor goes."""

import os
import signal

from svc_wire.processes import die_with_parent

PARENT_PID = "TWOSTROKE_PARENT_PID"


def follow_parent() -> None:
    """Has SIGHUP sent to this process when the one that TWOSTROKE_PARENT_PID names dies.

    That is not SIGTERM, because it is no time to finish anything: the peers go at the same moment.
    Does nothing where the variable is not set.
    """
    if parent := os.environ.get(PARENT_PID):
        die_with_parent(int(parent), signal.SIGHUP)
