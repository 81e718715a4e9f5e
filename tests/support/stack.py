"""The three services as real processes in a private directory, for tests from end to end."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.support.tmpfs import SHM, private_prefix
from twostroke_client import Client, TwostrokeError

ROOT = Path(__file__).parents[2]
READY_S = 90.0
"""Bound for everything to come up; a real model on a busy machine needs most of it."""


class Stack:
    """Starts, replaces and stops services. Their logs are shown when a test fails."""

    def __init__(
        self,
        *,
        executor: Sequence[str] = ("--model", "hash"),
        scheduler: Sequence[str] = (),
        frontend: Sequence[str] = (),
        order: Sequence[str] = ("executor_svc", "scheduler_svc", "frontend_svc"),
        gap_s: float = 0.0,
    ) -> None:
        self.run_dir = SHM / f"{private_prefix()}{secrets.token_hex(3)}"
        self._logs = Path(tempfile.mkdtemp(prefix="twostroke-logs-"))
        self._arguments = {
            "executor_svc": list(executor),
            "scheduler_svc": list(scheduler),
            "frontend_svc": ["--port", "0", *frontend],
        }
        self._order, self._gap_s = order, gap_s
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for service in self._order:
                self.start(service)
                time.sleep(self._gap_s)
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.kill()
            sys.stderr.write(self.logs())
        else:
            self.stop()
        shutil.rmtree(self._logs, ignore_errors=True)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    # -- the life of processes ---------------------------------------------------------------------

    def start(self, service: str, *arguments: str) -> None:
        """Starts a service with the arguments of before, unless there are new ones."""
        if arguments:
            self._arguments[service] = list(arguments)
        with (self._logs / f"{service}.log").open("ab") as log:
            self.processes[service] = subprocess.Popen(
                [sys.executable, "-m", service, "--run-dir", str(self.run_dir)]
                + self._arguments[service],
                cwd=ROOT,
                env={**os.environ, "TWOSTROKE_PARENT_PID": str(os.getpid())},
                stdout=log,
                stderr=log,
            )

    def end(self, service: str, signum: int = signal.SIGTERM, timeout_s: float = 20.0) -> int:
        """Sends a signal to a service and waits for its end; returns the exit code."""
        process = self.processes.pop(service)
        process.send_signal(signum)
        return process.wait(timeout_s)

    def stop(self) -> None:
        """Stops all with SIGTERM and insists that they leave cleanly and leave nothing behind."""
        codes = {service: self.end(service) for service in reversed(list(self.processes))}
        left = sorted(
            path.name for path in self.run_dir.iterdir() if not path.name.endswith(".lock")
        )
        assert set(codes.values()) == {0}, f"exit codes {codes}\n{self.logs()}"
        assert left == [], left

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}"
            for path in sorted(self._logs.iterdir())
        )

    # -- what tests look at ------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return (self.run_dir / "frontend.address").read_text().strip()

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Returns when requests are served. Raises AssertionError with the logs otherwise."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            dead = [s for s, p in self.processes.items() if p.poll() is not None]
            assert not dead, f"{dead} ended\n{self.logs()}"
            try:
                with Client(self.address) as client:
                    if client.server_status().ready:
                        return
            except (OSError, TwostrokeError):
                pass
            time.sleep(0.05)
        raise AssertionError(f"not ready after {timeout_s} s\n{self.logs()}")

    def memory_bytes(self) -> dict[str, int]:
        """Resident memory of each service that is its own (private pages)."""
        return {
            service: psutil.Process(process.pid).memory_full_info().uss
            for service, process in self.processes.items()
        }

    def cpu_s(self) -> float:
        """CPU time that all services have used so far."""
        times = [psutil.Process(p.pid).cpu_times() for p in self.processes.values()]
        return sum(t.user + t.system for t in times)
