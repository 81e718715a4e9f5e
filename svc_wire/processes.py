"""Who is alive: a process is (pid, start time), since pids come round again. Linux only."""

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def start_ticks(pid: int) -> int | None:
    """Start time of `pid` in clock ticks since boot (field 22 of /proc/pid/stat).

    None: no such process. A zombie counts as gone: it holds nothing any more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may hold anything, blanks and parentheses too.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def is_alive(pid: int, ticks: int) -> bool:
    """Whether the process that started as `pid` at `ticks` still runs."""
    return start_ticks(pid) == ticks


def die_with_parent(parent_pid: int, signum: signal.Signals = signal.SIGTERM) -> None:
    """Has the kernel send `signum` to this process when its parent dies (PR_SET_PDEATHSIG).

    Sends it at once if the parent is gone already. The parent that counts is the thread that
    started this process: a supervisor starts its children from a thread that stays.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signum)
