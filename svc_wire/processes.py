"""What a process owes its parent. Linux only."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, signum: signal.Signals = signal.SIGTERM) -> None:
    """Has the kernel send `signum` to this process when its parent dies (PR_SET_PDEATHSIG).

    Sends it at once if the parent is gone already. The parent that counts is the thread that
    started this process: a supervisor starts its children from a thread that stays.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signum)
