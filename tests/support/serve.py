"""`twostroke serve` as a process, for tests that watch it from outside."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from tests.support.processes import users_of
from tests.support.tmpfs import SHM, private_prefix

TWOSTROKE = str(Path(sys.executable).with_name("twostroke"))
READY_S = 60.0
ROLES = ("executor", "scheduler", "frontend")


class Serve:
    """A running instance with the hash model, in a runtime directory below one of its own."""

    def __init__(
        self,
        *options: str,
        wait: bool = True,
        shm: Path | None = None,
        stderr: int | None = None,
    ) -> None:
        """`shm` is a tmpfs for the runtime directory, if it shall not be the machine's; `stderr` a
        descriptor for what is written there, which `errors` does not know then."""
        # Short, for it becomes part of the path of a socket.
        self._home = tempfile.TemporaryDirectory(prefix=private_prefix(), dir=SHM)
        self._errors_path = Path(self._home.name) / "stderr"
        self._wait = wait
        self._shm = str(shm or self._home.name)
        self.run_dirs = Path(self._shm) / "twostroke"
        with self._errors_path.open("w") as errors:
            self._process = subprocess.Popen(
                [TWOSTROKE, "serve", "--model", "hash", "--port", "0", *options],
                stdout=subprocess.PIPE,
                stderr=errors if stderr is None else stderr,
                text=True,
                env=os.environ | {"XDG_RUNTIME_DIR": self._shm},
            )
        self.address = ""
        self.services: dict[str, psutil.Process] = {}

    def wait_ready(self) -> None:
        """Blocks until it says that it is ready."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], READY_S)
        line = self._process.stdout.readline() if readable else ""
        assert line.startswith("ready at "), line + self.errors()
        self.address = line.split()[-1]
        self.services = self.find_services()
        assert self.services.keys() == set(ROLES)

    @property
    def supervisor(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def find_services(self) -> dict[str, psutil.Process]:
        """Those that run now, by role."""
        found: dict[str, psutil.Process] = {}
        for child in self.supervisor.children():
            with suppress(psutil.NoSuchProcess):  # or a zombie, whose command line is empty
                words = child.cmdline()
                found |= {role: child for role in ROLES if f"{role}_svc" in words}
        return found

    def frontends(self) -> list[psutil.Process]:
        """Those that run now, also any that only let their streams finish."""
        found = []
        for child in self.supervisor.children():
            with suppress(psutil.NoSuchProcess):
                if "frontend_svc" in child.cmdline():
                    found.append(child)
        return found

    def errors(self) -> str:
        """What it and its services wrote to stderr so far."""
        return self._errors_path.read_text()

    def signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    def command(self, *words: str) -> tuple[int, str]:
        """Runs another `twostroke` command for this instance: exit status and stderr."""
        running = self.begin_command(*words)
        _, errors = running.communicate(timeout=60)
        return running.returncode, errors

    def begin_command(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [TWOSTROKE, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"XDG_RUNTIME_DIR": self._shm},
        )

    def wait(self, timeout_s: float) -> int:
        """Its exit status."""
        return self._process.wait(timeout_s)

    def survivors(self, timeout_s: float) -> list[psutil.Process]:
        """The services that still run after so long."""
        return psutil.wait_procs(self.services.values(), timeout_s)[1]

    def leftovers(self) -> list[str]:
        """Files that are still there of it."""
        return sorted(str(path) for path in self.run_dirs.rglob("*"))

    def __enter__(self) -> Self:
        try:
            if self._wait:
                self.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            sys.stderr.write(self.errors())
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # Also those of a supervisor that was killed before it said that they are there: one that
        # still starts would make its directory anew.
        for service in psutil.wait_procs(users_of(self.run_dirs), 5)[1]:
            service.kill()
            service.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._home.cleanup()


def wait_until(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came to hold within the time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
