"""The runtime directory: a private folder on tmpfs with the sockets and the frame ring.

One directory is one instance: two instances never meet unless they are given the same directory,
and then the second one is refused by a lock, with a clear error.
"""

import contextlib
import fcntl
import os
import signal
import stat
import time
from pathlib import Path

from svc_wire.errors import LockHeld, RunDirError

TAKE_OVER_LOOK_S = 0.002
"""While nobody has the lock that is waited for, streams stand still."""
IPC_PATH_MAX_BYTES = 100  # the kernel's limit for a socket path is 107


def default_run_dir() -> Path:
    """XDG_RUNTIME_DIR/twostroke, or /dev/shm/twostroke-UID where that is not set."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "twostroke") if runtime else Path(f"/dev/shm/twostroke-{os.geteuid()}")


class RunDir:
    """A checked runtime directory. Raises RunDirError if it belongs to others or cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if len(os.fsencode(self.path / "scheduler.sock")) > IPC_PATH_MAX_BYTES:
            raise RunDirError(f"the path of the runtime directory is too long for a socket: {path}")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Of the name itself: in a directory where everybody may write, such as /dev/shm, a link
            # could have been laid there by somebody else.
            found = self.path.lstat()
        except OSError as error:
            raise RunDirError(
                f"cannot use the runtime directory {path}: {error.strerror}"
            ) from error
        if not stat.S_ISDIR(found.st_mode):
            raise RunDirError(f"the runtime directory {path} is a link or no directory")
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise RunDirError(
                f"the runtime directory {path} must belong to this user (uid {os.geteuid()}) with "
                f"mode 0700, it has owner {found.st_uid} and mode {stat.S_IMODE(found.st_mode):04o}"
            )
        os.umask(0o077)  # sockets made from here on belong to this user alone

    @property
    def executor_endpoint(self) -> str:
        return f"ipc://{self.path}/executor.sock"

    @property
    def scheduler_endpoint(self) -> str:
        return f"ipc://{self.path}/scheduler.sock"

    def lock(self, role: str) -> int:
        """Makes this process the only `role` of the instance, until it ends; returns the lock's fd.

        The lock is the kernel's (flock), so that it goes with its holder however that ends, and
        holds across containers that share the directory. Raises LockHeld if another process has it,
        and RunDirError if it cannot be made.
        """
        # Whoever looks whether a lock is held takes it for an instant; that is not another owner.
        for pause_s in (0.0, 0.01, 0.05, 0.1):
            time.sleep(pause_s)
            if (fd := self._try_lock(role)) is not None:
                return fd
        raise self._taken(role)

    def take_over(self, role: str, wait_s: float) -> int:
        """As `lock`, but who has it is asked to leave (SIGINT), and has `wait_s` for that.

        Owner and successor must be in one pid namespace.
        """
        with contextlib.suppress(LockHeld):
            return self.lock(role)
        with contextlib.suppress(OSError, ValueError):  # it has just gone
            pid, _, _ = (self.path / f"{role}.lock").read_text().partition("\n")
            os.kill(int(pid), signal.SIGINT)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if (fd := self._try_lock(role)) is not None:
                return fd
            time.sleep(TAKE_OVER_LOOK_S)
        raise self._taken(role)

    def _try_lock(self, role: str) -> int | None:
        """The lock's fd; None if another process has it just now. Raises RunDirError."""
        path = self.path / f"{role}.lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise RunDirError(f"cannot make the lock {path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.write(fd, b"%d\n" % os.getpid())  # for `take_over`
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            os.close(fd)
            raise RunDirError(f"cannot write the lock {path}: {error.strerror}") from error
        return fd

    def _taken(self, role: str) -> LockHeld:
        return LockHeld(f"another {role} runs in {self.path}: stop it, or choose another --run-dir")


def remove_socket(endpoint: str) -> None:
    """Removes the file of an ipc endpoint that this process bound and has closed.

    Only the holder of the role's lock may call it: libzmq leaves the file, and a successor makes
    another one under the same name.
    """
    Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
