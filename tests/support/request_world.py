"""The scheduler's side of the front ends, and front ends that are the test."""

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import zmq

from scheduler_svc.frontends import Frontends
from scheduler_svc.meter import Meter
from scheduler_svc.requests import Requests
from svc_wire.capacity import ModelInfo
from svc_wire.frames import StepLogprobs
from svc_wire.frontend_link import (
    PROTOCOL_VERSION,
    STREAM_BYTES,
    Abort,
    AskPolicy,
    Attach,
    Attached,
    Detach,
    Outputs,
    PolicyInForce,
    Rejected,
    Submit,
    Unknown,
    to_frontend,
    to_scheduler,
)
from svc_wire.ids import FinishReason, RejectReason, RowStatus
from tests.support.core import plan, result, scheduler
from tests.support.fake_scheduler import status

MODEL = ModelInfo(name="m", path="", eos_ids=(), dtype="", device="")
ATTACHED = Attached(PROTOCOL_VERSION, MODEL, 90, 40)
STREAM = bytes(STREAM_BYTES)
PROMPT = (1, 2, 3)
GRACE_S = 5.0
WAIT_MS = 5000


@dataclass
class FrontEnd:
    """The other end: what it was told, by key."""

    world: "World"
    socket: "zmq.Socket[bytes]"
    tokens: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """(index, token) of each key."""
    ends: dict[int, FinishReason] = field(default_factory=dict)
    rejected: dict[int, RejectReason] = field(default_factory=dict)
    told: list[tuple[int, float]] = field(default_factory=list)
    """(id, log-probability) of all tokens that had one."""

    def send(self, message: Attach | Submit | Abort | AskPolicy | Detach) -> None:
        self.socket.send(to_scheduler.encode(message))

    def read(self) -> None:
        """Takes in all that is under way: what comes before the answer to a question of its own."""
        self.send(AskPolicy(ticket=0))
        self.world.receive()
        while self.socket.poll(WAIT_MS):
            match to_frontend.decode(self.socket.recv()):
                case PolicyInForce() | Unknown():
                    return
                case Outputs(keys=keys, indices=indices, tokens=tokens, finished=finished) as it:
                    rows = zip(
                        np.frombuffer(keys, "<u8").tolist(),
                        np.frombuffer(indices, "<i4").tolist(),
                        np.frombuffer(tokens, "<i4").tolist(),
                        strict=True,
                    )
                    for key, index, token in rows:
                        self.tokens.setdefault(key, []).append((index, token))
                    told = np.frombuffer(it.logprob_ids, "<i4").tolist()
                    self.told += zip(told, np.frombuffer(it.logprobs, "<f4").tolist(), strict=True)
                    self.ends |= {end.key: end.reason for end in finished}
                case Rejected(key=key, reason=reason):
                    self.rejected[key] = reason
        raise AssertionError("no answer")


class World:
    """The scheduler's side of the front ends, with a core whose steps the test makes up."""

    def __init__(self, run_dir: str, waiting_max: int = 100) -> None:
        self.now = 0.0
        self.core = scheduler(waiting_max=waiting_max)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._endpoint = f"ipc://{run_dir}/scheduler.sock"
        self.frontends = Frontends(self._context, self._endpoint)
        self.requests = Requests(self.core, self.frontends, Meter(), GRACE_S)
        self._step = 0
        self._clients: list[zmq.Socket[bytes]] = []

    def connect(self, protocol: int = PROTOCOL_VERSION) -> FrontEnd:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        self._clients.append(socket)
        socket.connect(self._endpoint)
        front_end = FrontEnd(self, socket)
        front_end.send(Attach(protocol, "test"))
        self.receive()
        return front_end

    def receive(self, *, is_draining: bool = False, turn: bool = True) -> None:
        """Handles what the front ends have sent, of which there must be something.

        `turn`: the turn ends, or what is received next belongs to it as well.
        """
        asked = []
        assert self.frontends.socket.poll(WAIT_MS)
        for frontend, message in self.frontends.receive(self.now, ATTACHED, status):
            match message:
                case Submit():
                    self.requests.submit(frontend, message, is_draining=is_draining)
                case Abort():
                    self.requests.abort(frontend, message)
                case AskPolicy():
                    asked.append(frontend)
        if turn:
            self.turn()
        for frontend in asked:
            self.frontends.tell_policy(frontend, PolicyInForce(0, "", "", (), 0, "", 0, ()))

    def step(self, *tokens: int, deliver: bool = True) -> None:
        """Plans a step and commits these tokens, one for each row."""
        planned = plan(self.core)
        assert planned is not None
        self.requests.begin(planned.first_rows)
        self._step += 1
        rows = [(RowStatus.OK, token) for token in tokens]
        told = replace(result(self._step, *rows), logprobs=_told(tokens))
        self.requests.committed([self.core.commit(told)])
        if deliver:
            self.turn()

    def turn(self) -> None:
        self.requests.deliver()
        self.requests.orphan(self.now)
        self.frontends.flush()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.frontends.sweep(self.now)
        self.turn()

    @property
    def live(self) -> int:
        self.core.check()
        return len(self.requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.frontends.close()
        for client in self._clients:
            client.close(0)
        self._context.destroy(linger=0)


def _told(tokens: tuple[int, ...]) -> StepLogprobs:
    """-1 for each token, no alternatives."""
    nothing = np.empty((len(tokens), 0))
    chosen = np.full(len(tokens), -1, np.float32)
    return StepLogprobs(chosen, nothing.astype(np.int32), nothing.astype(np.float32))


def submit(key: int, *output: int, **changes: object) -> Submit:
    facts = {"max_tokens": 9, "stream": STREAM} | changes
    return Submit(key, ids(PROMPT), output=ids(output), **facts)  # type: ignore[arg-type]


def ids(tokens: tuple[int, ...]) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def begun(world: World, *tokens: int) -> FrontEnd:
    """A front end with one request, key 7, that has got these tokens."""
    front_end = world.connect()
    front_end.send(submit(7))
    world.receive()
    for token in tokens:
        world.step(token)
    front_end.read()
    assert front_end.tokens.get(7, []) == list(enumerate(tokens))
    return front_end


def vanish(world: World, front_end: FrontEnd) -> None:
    front_end.send(Detach())
    world.receive()
