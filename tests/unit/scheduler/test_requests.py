"""Requests that nobody comes back for, or whose clients cancel, end; keys are used once."""

import time

import msgspec

from scheduler_svc.frontends import SILENCE_MAX_S
from svc_wire.frontend_link import PROTOCOL_VERSION, Abort, Attach
from svc_wire.ids import FinishReason, RejectReason
from tests.support.core import CAPACITY
from tests.support.fake_scheduler import status
from tests.support.request_world import GRACE_S, World, begun, submit, vanish


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
    assert list(world.requests._orphans) == []
    world.pass_time(2 * GRACE_S)


def test_a_silent_front_end_leaves_orphans(world: World) -> None:
    begun(world, 10)
    world.pass_time(SILENCE_MAX_S + 0.1)
    assert world.live == 1
    world.pass_time(GRACE_S)
    assert world.live == 0


def test_a_front_end_that_cannot_be_told_anything_leaves_orphans(world: World) -> None:
    begun(world, 10).socket.close(0)
    deadline = time.monotonic() + 10
    while world.frontends._by_identity and time.monotonic() < deadline:
        world.frontends.broadcast(status())
    world.turn()
    assert world.live == 1
    world.pass_time(GRACE_S)
    assert world.live == 0


def test_a_front_end_that_attaches_anew_leaves_orphans(world: World) -> None:
    """It has forgotten what it had."""
    first = begun(world, 10)
    first.send(Attach(PROTOCOL_VERSION, "test"))
    world.receive()
    world.step(11)
    first.read()
    assert first.tokens[7] == [(0, 10)]
    world.pass_time(GRACE_S)
    assert world.live == 0


def test_a_front_end_of_another_protocol_is_not_served(world: World) -> None:
    stranger = world.connect(PROTOCOL_VERSION + 1)
    stranger.send(submit(7))
    world.receive()
    assert world.live == 0
    stranger.read()


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


def test_what_was_committed_goes_out_before_an_end_that_another_executor_brings(
    world: World,
) -> None:
    first = begun(world, 10)
    world.step(11, deliver=False)
    smaller = msgspec.structs.replace(CAPACITY, num_blocks=2)
    world.requests.end([*world.core.executor_lost(), *world.core.attach(smaller, 2)])
    world.turn()
    first.read()
    assert first.ends == {7: FinishReason.ERROR}
    assert first.tokens[7] == [(0, 10), (1, 11)]


def test_what_was_committed_goes_out_before_the_end_that_a_deadline_brings(world: World) -> None:
    first = begun(world, 10)
    world.step(11, deliver=False)
    first.send(Abort(7, FinishReason.DEADLINE))
    world.receive()
    first.read()
    assert first.ends == {7: FinishReason.DEADLINE}
    assert first.tokens[7] == [(0, 10), (1, 11)]
