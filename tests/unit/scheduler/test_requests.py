"""Requests and their front ends: who gets what, when front ends vanish, come back and take over."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import numpy as np
import pytest
import zmq

from scheduler_svc.frontends import SILENCE_MAX_S, Frontends
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
from tests.support.frontend import private_dir

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

    def connect(self) -> FrontEnd:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        self._clients.append(socket)
        socket.connect(self._endpoint)
        front_end = FrontEnd(self, socket)
        front_end.send(Attach(PROTOCOL_VERSION, "test"))
        self.receive()
        return front_end

    def receive(self, *, is_draining: bool = False) -> None:
        """Handles what the front ends have sent, of which there must be something."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.frontends.close()
        for client in self._clients:
            client.close(0)
        self._context.destroy(linger=0)


@pytest.fixture
def world() -> Iterator[World]:
    with private_dir() as run_dir, World(str(run_dir)) as it:
        yield it


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


# -- taken over ------------------------------------------------------------------------------------


def test_a_successor_gets_what_its_client_lacks_and_then_the_rest(world: World) -> None:
    vanish(world, begun(world, 10, 11))
    world.step(12)  # it goes on meanwhile
    successor = world.connect()
    successor.send(submit(1, 10))
    world.receive()
    world.step(13)
    successor.read()
    assert successor.tokens == {1: [(1, 11), (2, 12), (3, 13)]}
    assert world.live == 1, "it is the same sequence"


def test_what_is_under_way_does_not_come_twice(world: World) -> None:
    vanish(world, begun(world, 10))
    successor = world.connect()
    world.step(11, deliver=False)
    successor.send(submit(1, 10))
    world.receive()
    successor.read()
    assert successor.tokens == {1: [(1, 11)]}


def test_an_answer_that_ends_just_then_is_begun_again_from_what_is_there(world: World) -> None:
    first = world.connect()
    first.send(submit(7, max_tokens=2))
    world.receive()
    world.step(10)
    vanish(world, first)
    successor = world.connect()
    world.step(11, deliver=False)
    assert world.live == 1
    successor.send(submit(1, 10, max_tokens=2))
    world.receive()
    world.step(11)
    successor.read()
    assert successor.tokens == {1: [(1, 11)]}
    assert successor.ends == {1: FinishReason.LENGTH}
    assert world.live == 0


def test_who_still_has_it_is_told_that_it_has_gone(world: World) -> None:
    """A client whose connection broke is back before its front end notices."""
    first = begun(world, 10)
    first.send(submit(8, 10))  # the same front end, even
    world.receive()
    world.step(11)
    first.read()
    assert first.ends == {7: FinishReason.ABORT}
    assert first.tokens == {7: [(0, 10)], 8: [(1, 11)]}
    first.send(Abort(7, FinishReason.ABORT))
    world.receive()
    assert world.live == 1, "the old key says nothing about it any more"
    first.send(Abort(8, FinishReason.ABORT))
    world.receive()
    assert world.live == 0


def test_a_waiting_one_is_taken_over_too_and_keeps_its_place(world: World) -> None:
    first = world.connect()
    first.send(submit(7))
    first.send(submit(8, stream=b""))
    world.receive()
    while world.live < 2:
        world.receive()
    vanish(world, first)
    successor = world.connect()
    successor.send(submit(1))
    world.receive()
    assert world.live == 2
    world.step(10, 20)
    successor.read()
    assert successor.tokens == {1: [(0, 10)]}, "the first row is that of the first who came"


def test_another_beginning_is_another_request(world: World) -> None:
    vanish(world, begun(world, 10, 11))
    successor = world.connect()
    successor.send(submit(1, 89))
    world.receive()
    world.step(50)
    successor.read()
    assert successor.tokens == {1: [(1, 50)]}, "it goes on from what the client has"
    assert world.live == 1, "and the old one ends"


def test_who_comes_back_is_not_turned_away() -> None:
    with private_dir() as run_dir, World(str(run_dir), waiting_max=1) as world:
        first = begun(world, 10)
        vanish(world, first)
        other = world.connect()
        other.send(submit(1, stream=b""))
        world.receive()
        for key, stream in ((2, STREAM), (3, bytes([1]) * STREAM_BYTES)):
            other.send(submit(key, 77, stream=stream))
            world.receive()
        other.read()
        assert other.rejected == {3: RejectReason.QUEUE_FULL}, "nobody knows that one"


def test_a_drain_turns_newcomers_away_but_hands_over(world: World) -> None:
    vanish(world, begun(world, 10))
    successor = world.connect()
    successor.send(submit(1, 10))
    world.receive(is_draining=True)
    successor.send(submit(2, 10, stream=bytes([1]) * STREAM_BYTES))
    world.receive(is_draining=True)
    successor.read()
    assert successor.rejected == {2: RejectReason.DRAINING}
    assert world.live == 1


def test_tokens_whose_log_probabilities_nobody_kept_are_sampled_again(world: World) -> None:
    first = world.connect()
    first.send(submit(7, logprobs=0))
    world.receive()
    world.step(10)
    vanish(world, first)
    world.step(11)  # and what the model thought of it is lost
    successor = world.connect()
    successor.send(submit(1, 10, logprobs=0))
    world.receive()
    assert world.live == 1, "the old one ends"
    world.step(11)
    world.step(12)
    successor.read()
    assert successor.tokens == {1: [(1, 11), (2, 12)]}
    assert successor.told == [(11, -1.0), (12, -1.0)]


def test_without_tokens_in_between_it_is_handed_over_with_log_probabilities(world: World) -> None:
    first = world.connect()
    first.send(submit(7, logprobs=0))
    world.receive()
    world.step(10)
    before = list(world.core._roster.sequences)
    vanish(world, first)
    successor = world.connect()
    successor.send(submit(1, 10, logprobs=0))
    world.receive()
    assert list(world.core._roster.sequences) == before, "it is the same sequence"
    world.step(11)
    successor.read()
    assert successor.told == [(11, -1.0)]


# -- left alone ------------------------------------------------------------------------------------


def test_nobody_comes(world: World) -> None:
    vanish(world, begun(world, 10))
    world.pass_time(GRACE_S - 0.1)
    assert world.live == 1
    world.pass_time(0.2)
    assert world.live == 0


def test_who_came_back_in_time_stays(world: World) -> None:
    vanish(world, begun(world, 10))
    world.pass_time(GRACE_S - 0.1)
    successor = world.connect()
    successor.send(submit(1, 10))
    world.receive()
    world.pass_time(GRACE_S)
    assert world.live == 1


def test_an_orphan_comes_to_its_own_end(world: World) -> None:
    first = world.connect()
    first.send(submit(7, max_tokens=2))
    world.receive()
    vanish(world, first)
    world.step(10)
    world.step(11)
    assert world.live == 0
    world.pass_time(2 * GRACE_S)


def test_a_silent_front_end_leaves_orphans(world: World) -> None:
    begun(world, 10)
    world.pass_time(SILENCE_MAX_S + 0.1)
    assert world.live == 1
    world.pass_time(GRACE_S)
    assert world.live == 0


def test_a_client_that_cancelled_leaves_nothing(world: World) -> None:
    first = begun(world, 10)
    first.send(Abort(7, FinishReason.ABORT))
    world.receive()
    assert world.live == 0
    first.send(submit(8, 10))
    world.receive()
    world.step(11)
    first.read()
    assert first.tokens[8] == [(1, 11)], "whoever goes on with it begins anew from what it has"


def test_a_key_is_used_once(world: World) -> None:
    first = begun(world, 10)
    first.send(submit(7, 10))
    world.receive()
    first.read()
    assert first.rejected == {7: RejectReason.INVALID}
    assert world.live == 1
