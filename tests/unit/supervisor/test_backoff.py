"""Pauses between the starts of a service that dies."""

from supervisor_svc.backoff import HEALTHY_S, Backoff


def test_the_first_start_is_at_once_then_the_pause_doubles_to_a_bound_then_no_more() -> None:
    backoff = Backoff(restarts_max=9)
    pauses = [backoff.pause_s(1.0) for _ in range(10)]
    assert pauses == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0, None]


def test_a_long_life_wipes_the_slate_clean() -> None:
    backoff = Backoff(restarts_max=2)
    assert [backoff.pause_s(1.0), backoff.pause_s(HEALTHY_S)] == [0.0, 0.0]
    assert backoff.pause_s(1.0) == 0.25
    assert backoff.pause_s(1.0) is None
