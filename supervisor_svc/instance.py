"""The runtime directory of one instance: private, and gone when the instance is gone.

    default_run_dir()/             one for each user
        serve-XXXXXXXX/            one for each instance that was not given a directory
            supervisor.lock ...    held by the processes of the instance while they live

An instance whose supervisor was killed cannot remove its directory; the next one to start does,
once nobody holds a lock in it, and says so. The flock on the parent keeps those who make
directories and those who sweep them apart.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from supervisor_svc.stack import StackError
from svc_shell.presence import ADDRESS_FILE, is_held
from svc_wire.errors import RunDirError
from svc_wire.rundir import RunDir, default_run_dir


class InstanceError(StackError):
    pass


_PREFIX = "serve-"
_LEFTOVERS = ("*.sock", "ring-*", "kv-index*", ADDRESS_FILE)


Tell = Callable[[str], object]
"""Gets a line for a person."""


@contextmanager
def instance_dir(given: Path | None, tell: Tell) -> Iterator[Path]:
    """The locked runtime directory of a new instance, cleared of what it left when it ends.

    `tell` hears what dead instances had left. Raises InstanceError if the directory is unusable or
    belongs to a running instance.
    """
    with ExitStack() as place:
        try:
            path = place.enter_context(_private(tell) if given is None else _locked(given, tell))
        except RunDirError as error:
            raise InstanceError(str(error)) from error
        yield path


@contextmanager
def _locked(given: Path, tell: Tell) -> Iterator[Path]:
    run_dir = RunDir(given)
    lock = run_dir.lock("supervisor")
    try:
        if removed := _remove_leftovers(run_dir.path):
            tell(f"removed what a dead instance left in {run_dir.path}: {', '.join(removed)}")
        yield run_dir.path
    finally:
        _remove_leftovers(run_dir.path)
        os.close(lock)


@contextmanager
def _private(tell: Tell) -> Iterator[Path]:
    parent = RunDir(default_run_dir()).path
    path = parent / f"{_PREFIX}{secrets.token_hex(4)}"
    lock = None
    try:  # from before it is made: an interrupt may come as soon as it is there
        with _alone(parent):
            _sweep(parent, tell)
            lock = RunDir(path).lock("supervisor")
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def _alone(parent: Path) -> Iterator[None]:
    """Nobody else makes or sweeps directories there meanwhile."""
    guard = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield
    finally:
        os.close(guard)


def _sweep(parent: Path, tell: Tell) -> None:
    for old in parent.glob(f"{_PREFIX}*"):
        if not any(is_held(lock) for lock in old.glob("*.lock")):
            shutil.rmtree(old, ignore_errors=True)
            done = "cannot remove" if old.exists() else "removed"
            tell(f"{done} what a dead instance left: {old}")


def _remove_leftovers(path: Path) -> list[str]:
    """Removes the files of dead services, unless a service of somebody else lives here; returns
    their names."""
    others = (lock for lock in path.glob("*.lock") if lock.name != "supervisor.lock")
    if any(is_held(lock) for lock in others):
        return []
    left = sorted(file for pattern in _LEFTOVERS for file in path.glob(pattern))
    for file in left:
        file.unlink(missing_ok=True)
    return [file.name for file in left]
