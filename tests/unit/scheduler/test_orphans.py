"""Requests without a front end leave nothing behind, whatever happens to them in the same turn."""

from scheduler_svc.orphans import Orphans
from tests.support.request_world import GRACE_S, World, begun, submit, vanish


def test_who_ended_in_the_turn_in_which_its_front_end_went_is_no_orphan(world: World) -> None:
    first = world.connect()
    first.send(submit(7, max_tokens=1))
    world.receive()
    world.step(10, deliver=False)  # it has ended, which nobody was told yet
    vanish(world, first)
    assert world.live == 0
    assert list(world.requests._orphans) == []


def test_with_another_model_orphans_of_before_end_too(world: World) -> None:
    vanish(world, begun(world, 10))
    world.pass_time(GRACE_S / 2)
    assert world.live == 1
    world.frontends.drop_all("something else is served now")
    world.requests.abort_dropped()
    assert world.live == 0


def test_orphans_are_told_in_the_order_in_which_they_came() -> None:
    orphans = Orphans(grace_s=1.0)
    orphans.add([3, 1], now=0.0)  # type: ignore[list-item]
    orphans.add([2], now=1.0)  # type: ignore[list-item]
    assert list(orphans) == [3, 1, 2]
    assert orphans.overdue(1.0) == [3, 1]
