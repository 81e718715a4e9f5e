"""What tests leave behind: processes, and directories on tmpfs.

Workers that run side by side share both, and must not be blamed for each other. A directory has the
pid of its maker in its name (tmpfs.py). A process carries it in its environment, and so do those
that it starts; so they are found when their parents are dead, too.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.tmpfs import SHM, private_prefix

STARTED_BY = "TESTS_STARTED_BY"
ENDING_S = 5.0
"""Processes that are about to end may take so long."""


def mark() -> None:
    """Marks all processes that this one starts from now on.

    Whoever looks for the runtime directory of the user finds one that is missed at the end.
    """
    os.environ[STARTED_BY] = str(os.getpid())
    os.environ["XDG_RUNTIME_DIR"] = str(SHM / f"{private_prefix()}user")


def clear() -> list[str]:
    """Kills and removes what is left of the tests of this process; says what that was."""
    return [*_kill_processes(), *_remove_directories()]


def _kill_processes() -> Iterator[str]:
    for process in psutil.wait_procs(_marked_processes(), ENDING_S)[1]:
        try:
            yield f"process {process.pid}: {' '.join(process.cmdline())}"
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _marked_processes() -> list[psutil.Process]:
    """Read from /proc by hand: this is done after every test file."""
    mark, found = f"{STARTED_BY}={os.getpid()}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                process = psutil.Process(int(path.parent.name))
                found += [process] if not _is_resident(process) else []
        except (OSError, psutil.NoSuchProcess):
            continue  # of another user, or gone meanwhile
    return found


def _is_resident(process: psutil.Process) -> bool:
    """Whether it is one of Python's own that stay as long as whom they serve."""
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())


def _remove_directories() -> Iterator[str]:
    for path in SHM.glob(f"{private_prefix()}*"):
        yield str(path)
        shutil.rmtree(path, ignore_errors=True)
