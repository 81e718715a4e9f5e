"""Requests whose front ends vanished are taken over by others, without gap or repetition."""

from svc_wire.frontend_link import STREAM_BYTES, Abort, Detach
from svc_wire.ids import FinishReason, RejectReason
from tests.support.request_world import GRACE_S, STREAM, World, begun, submit, vanish
from tests.support.tmpfs import private_dir


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


def test_one_that_is_taken_over_in_the_turn_in_which_its_front_end_goes_is_no_orphan(
    world: World,
) -> None:
    """The scheduler was held up, and both lie ready."""
    first = begun(world, 10)
    successor = world.connect()
    first.send(Detach())
    world.receive(turn=False)
    successor.send(submit(1, 10))
    world.receive()
    world.pass_time(GRACE_S + 1)
    world.step(11)
    successor.read()
    assert successor.tokens == {1: [(1, 11)]}
    assert not successor.ends


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


def test_an_answer_that_has_ended_is_known_no_longer(world: World) -> None:
    first = world.connect()
    first.send(submit(7, max_tokens=1))
    world.receive()
    world.step(10)
    assert world.live == 0
    first.send(submit(8))
    world.receive(is_draining=True)
    first.read()
    assert first.rejected == {8: RejectReason.DRAINING}, "a newcomer, as far as anybody can tell"


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
