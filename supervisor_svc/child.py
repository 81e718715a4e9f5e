"""A service as a child process: it gets its own session, and goes when this process goes."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence

KILL_WAIT_S = 10.0
HURRY_S = 0.3
_STDERR = 2


class Child:
    """One running service. `role` is its name in messages and of its lock."""

    def __init__(self, role: str, command: Sequence[str]) -> None:
        self.role = role
        self.started_at = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,
            # Ctrl-C reaches the supervisor alone, which then stops the services in order.
            start_new_session=True,
            env=os.environ | {"TWOSTROKE_PARENT_PID": str(os.getpid())},
        )
        self.pidfd = os.pidfd_open(self._process.pid)
        """Readable once the process has ended."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def ending(self) -> str:
        """How the process ended, for a person."""
        status = self._process.poll()
        assert status is not None, "asked of a process that has ended"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    def hurry(self) -> None:
        """Tells the process that it is about to be stopped and shall not finish anything."""
        self._process.terminate()
        wait_for_end([self], HURRY_S)  # two signals at once would be taken for one

    def stop(self, timeout_s: float) -> bool:
        """Asks the process to end. True: it did within the time; False: it had to be killed."""
        self._process.terminate()
        if wait_for_end([self], timeout_s):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """Ends the process at once. Does nothing to one that has ended."""
        self._process.kill()
        self._process.wait(KILL_WAIT_S)

    def close(self) -> None:
        """Frees what the kernel keeps for a process that has ended."""
        assert self.has_ended
        os.close(self.pidfd)


def wait_for_end(children: Iterable[Child], timeout_s: float | None) -> list[Child]:
    """Blocks until one of them has ended or the time is up; returns those that have ended."""
    children = list(children)
    if not any(child.has_ended for child in children):
        select.select([child.pidfd for child in children], [], [], timeout_s)
    return [child for child in children if child.has_ended]
