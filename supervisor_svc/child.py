"""A service as a child process: it gets its own session, and goes when this process goes."""

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import IO

from svc_shell.last_words import LAST_WORDS_FD, LastWords
from svc_shell.parent import PARENT_PID

KILL_WAIT_S = 10.0
HURRY_S = 0.3
_STDERR = 2


class Child:
    """One running service. `name` is that of its lock, and in messages."""

    def __init__(
        self, name: str, command: Sequence[str], *, stderr: IO[bytes] | None = None
    ) -> None:
        """`stderr` takes what it writes there, if it shall not come out here."""
        self.name = name
        self._last_words = LastWords()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,
            stderr=stderr,
            # Ctrl-C reaches the supervisor alone, which then stops the services in order.
            start_new_session=True,
            # Usage errors in plain text: they go to logs, and to those who gave an order.
            env=os.environ
            | {
                PARENT_PID: str(os.getpid()),
                LAST_WORDS_FD: str(self._last_words.fd),
                "TYPER_USE_RICH": "0",
            },
            pass_fds=[self._last_words.fd],
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
    def status(self) -> int:
        """Its exit status, which it must have; that of one that was killed is minus the signal."""
        status = self._process.poll()
        assert status is not None, "asked of a process that has ended"
        return status

    @property
    def ending(self) -> str:
        """How the process ended, for a person."""
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"exited with status {self.status}"

    @property
    def reason(self) -> str:
        """What it said why it ended, after a colon; empty if it did not."""
        words = self._last_words.read() if self.status > 0 else ""
        return f": {words}" if words else ""

    def ask_to_end(self) -> None:
        """Returns at once."""
        self._process.terminate()

    def hurry(self) -> None:
        """Tells the process that it is about to be stopped and shall not finish anything."""
        self.ask_to_end()
        wait_for_end([self], HURRY_S)  # two signals at once would be taken for one

    def strike(self) -> None:
        """Kills the process and does not wait for its end, which a device may hold up."""
        self._process.kill()

    def kill(self) -> None:
        """Ends the process at once. Does nothing to one that has ended."""
        self.strike()
        self._process.wait(KILL_WAIT_S)

    def close(self) -> None:
        """Frees what the kernel keeps for a process that has ended."""
        assert self.has_ended
        os.close(self.pidfd)
        self._last_words.close()


class OptionsCheck(Child):
    """A service that looks at its command line and ends: with status 0 if it could start."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        super().__init__(name, [*command, "--check"], stderr=self._said)

    @property
    def complaint(self) -> str:
        """What is wrong with the options, for a person; asked of a process that has ended."""
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        reason = said.rpartition("Error: ")[2].strip()
        return f"the new {self.name} does not start: {reason or self.ending}"

    def close(self) -> None:
        super().close()
        self._said.close()


def wait_for_end(children: Iterable[Child], timeout_s: float | None) -> list[Child]:
    """Blocks until one of them has ended or the time is up; returns those that have ended."""
    children = list(children)
    if not any(child.has_ended for child in children):
        select.select([child.pidfd for child in children], [], [], timeout_s)
    return [child for child in children if child.has_ended]


def see_end(children: Iterable[Child], timeout_s: float) -> list[Child]:
    """Blocks until all have ended or the time is up; then kills and returns those that have not."""
    deadline, killed = time.monotonic() + timeout_s, []
    for child in children:
        if not wait_for_end([child], max(0.0, deadline - time.monotonic())):
            child.kill()
            killed.append(child)
    return killed
