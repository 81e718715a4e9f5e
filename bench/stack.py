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
    Abort,
    Attach,
    Attached,
    Outputs,
    Ping,
    Rejected,
    Sampling,
    Status,
    Submit,
    to_frontend,
    to_scheduler,
)
from svc_wire.ids import FinishReason
from svc_wire.rundir import RunDir

_START_TIMEOUT_S = 600.0
_PING_INTERVAL_S = 1.0
"""A front end that is silent for longer than some seconds is given up by the scheduler."""
_SILENCE_MAX_S = 120.0
_EXIT_TIMEOUT_S = 30.0

Steps = npt.NDArray[np.void]
"""Records of executor_svc.tracing."""


@contextlib.contextmanager
def service(name: str, *options: str) -> Iterator[int]:
    """A service's process, from here to the end of the block; gives its pid."""
    process = subprocess.Popen([sys.executable, "-m", name, *options], env=os.environ)
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


WAYS = {
    "greedy": Sampling(),
    "drawn": Sampling(temperature=0.8, seed=1),
    "filtered": Sampling(temperature=0.8, top_k=50, top_p=0.9, seed=1),
    "penalised": Sampling(temperature=0.8, repetition_penalty=1.1, frequency_penalty=0.1, seed=1),
}
"""Ways of sampling that the benches know."""


@dataclass(frozen=True, slots=True)
class Job:
    """So many requests at once, of random prompts, each with exactly `new` tokens."""

    batch: int
    prompt: int
    new: int
    sampling: str = "greedy"


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
        self._next_ping = 0.0
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
        before = steps_written(self._trace)
        begin = time.monotonic()
        for _ in range(job.batch):
            self.submit(job.prompt, job.new, WAYS[job.sampling])
        first: dict[int, float] = {}
        live, tokens = job.batch, 0
        while live:
            outputs = self._wait_for_outputs()
            now = time.monotonic() - begin
            for key in np.frombuffer(outputs.keys, "<u8").tolist():
                first.setdefault(key, now)
            tokens += len(outputs.tokens) // 4
            live -= len(outputs.finished)
        seconds = time.monotonic() - begin
        assert tokens == job.batch * job.new, f"{tokens} tokens came back"
        first_token_s = float(np.median(list(first.values())))
        return JobRun(seconds, first_token_s, steps_since(self._trace, before))

    def submit(self, prompt: int, new: int, sampling: Sampling, logprobs: int | None = None) -> int:
        """Sends a request with a random prompt of so many tokens; returns its key."""
        self._next_key += 1
        ids = self._rng.integers(0, self._vocab, prompt).astype("<i4")
        self._send(Submit(self._next_key, ids.tobytes(), new, sampling=sampling, logprobs=logprobs))
        return self._next_key

    def abort(self, key: int) -> None:
        """Asks for the end of a request; it still ends by an output of its own."""
        self._send(Abort(key, FinishReason.ABORT))

    def receive(self, timeout_s: float) -> Outputs | None:
        """The next outputs, if any come within the time. To be called again and again: it also
        tells the scheduler that this front end lives.

        Raises RuntimeError if a request was rejected.
        """
        now = time.monotonic()
        if now > self._next_ping:
            self._send(Ping())
            self._next_ping = now + _PING_INTERVAL_S
        deadline = now + timeout_s
        while self._socket.poll(max(0, int((deadline - time.monotonic()) * 1e3))):
            match to_frontend.decode(self._socket.recv()):
                case Outputs() as outputs:
                    return outputs
                case Rejected(message=message):
                    raise RuntimeError(f"the scheduler rejected a request: {message}")
        return None

    def _wait_for_outputs(self) -> Outputs:
        deadline = time.monotonic() + _SILENCE_MAX_S
        while time.monotonic() < deadline:
            if outputs := self.receive(_PING_INTERVAL_S):
                return outputs
        raise TimeoutError("the scheduler has been silent for too long")

    def _send(self, message: Abort | Attach | Ping | Submit) -> None:
        self._socket.send(to_scheduler.encode(message))

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


def steps_written(trace: Path) -> int:
    """Steps whose records are in the file."""
    return trace.stat().st_size // STEP.itemsize


def steps_since(trace: Path, count: int) -> Steps:
    """The executor's records after the first `count`; late ones are waited for."""
    time.sleep(0.5)
    return np.fromfile(trace, STEP)[count:]


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
