"""The real executor and scheduler as processes, with the bench in the place of a front end."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zmq

from executor_svc.tracing import STEP
from svc_wire.frontend_link import (
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Outputs,
    Ping,
    Rejected,
    Status,
    Submit,
    to_frontend,
    to_scheduler,
)
from svc_wire.rundir import RunDir

_START_TIMEOUT_S = 600.0
_SILENCE_MAX_S = 120.0
_EXIT_TIMEOUT_S = 30.0

Steps = npt.NDArray[np.void]
"""Records of executor_svc.tracing."""


@contextlib.contextmanager
def service(name: str, *options: str) -> Iterator[None]:
    """A service's process, from here to the end of the block."""
    process = subprocess.Popen([sys.executable, "-m", name, *options], env=os.environ)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Job:
    """So many requests at once, of random prompts, each with exactly `new` tokens."""

    batch: int
    prompt: int
    new: int


@dataclass(frozen=True, slots=True, eq=False)
class JobRun:
    seconds: float
    first_token_s: float
    """Median over the requests, from the submission of all."""
    steps: Steps


class Client:
    """A front end of one scheduler that sends token ids and counts what comes back."""

    def __init__(self, run_dir: RunDir, trace: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(run_dir.scheduler_endpoint)
        self._trace = trace
        self._next_key = 0
        self._rng = np.random.default_rng(0)
        self._vocab = self._attach()

    def _attach(self) -> int:
        """Waits until an executor is ready behind the scheduler; returns the vocabulary's size."""
        vocab, deadline = 0, time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            self._send(Attach(PROTOCOL_VERSION, "bench") if not vocab else Ping())
            while self._socket.poll(500):
                match to_frontend.decode(self._socket.recv()):
                    case Attached(vocab_size=vocab):
                        pass
                    case Status(ready=True) if vocab:
                        return vocab
        raise TimeoutError("the services did not become ready")

    def run(self, job: Job) -> JobRun:
        """Submits the whole job and waits for its last token."""
        before = self._trace.stat().st_size // STEP.itemsize
        keys = range(self._next_key, self._next_key + job.batch)
        self._next_key += job.batch
        begin = time.monotonic()
        for key in keys:
            prompt = self._rng.integers(0, self._vocab, job.prompt).astype("<i4")
            self._send(Submit(key, prompt.tobytes(), job.new))
        first: dict[int, float] = {}
        live, tokens = job.batch, 0
        while live:
            outputs = self._receive_outputs()
            now = time.monotonic() - begin
            for key in np.frombuffer(outputs.keys, "<u8").tolist():
                first.setdefault(key, now)
            tokens += len(outputs.tokens) // 4
            live -= len(outputs.finished)
        seconds = time.monotonic() - begin
        assert tokens == job.batch * job.new, f"{tokens} tokens came back"
        return JobRun(seconds, float(np.median(list(first.values()))), self._steps_since(before))

    def _receive_outputs(self) -> Outputs:
        while self._socket.poll(int(_SILENCE_MAX_S * 1000)):
            match to_frontend.decode(self._socket.recv()):
                case Outputs() as outputs:
                    return outputs
                case Rejected(message=message):
                    raise RuntimeError(f"the scheduler rejected a request: {message}")
        raise TimeoutError("the scheduler has been silent for too long")

    def _steps_since(self, count: int) -> Steps:
        """The executor's records; it writes them in blocks, so late ones are waited for."""
        time.sleep(0.5)
        return np.fromfile(self._trace, STEP)[count:]

    def _send(self, message: Attach | Ping | Submit) -> None:
        self._socket.send(to_scheduler.encode(message))

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


@contextlib.contextmanager
def scheduler(
    run_dir: RunDir, trace: Path, *, depth: int, options: Sequence[str]
) -> Iterator[Client]:
    """A scheduler process beside the running executor, and a client of it."""
    with service("scheduler_svc", "--run-dir", str(run_dir.path), "--depth", str(depth), *options):
        client = Client(run_dir, trace)
        try:
            yield client
        finally:
            client.close()
