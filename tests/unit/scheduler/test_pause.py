"""How the loop waits for a result that may come while it lies down."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq

from scheduler_svc.pause import IN_FLIGHT_WAIT_S, Pause


class FakeLink:
    """The executor's link, whose result comes just before it is told that somebody waits: without a
    doorbell."""

    def __init__(self, sockets: "list[zmq.Socket[bytes]]", *, completes: bool) -> None:
        self.socket, self.monitor = sockets
        self.said: list[bool] = []
        """What it was told of our waiting."""
        self._completes = completes

    def is_complete(self, step: int) -> bool:
        return self._completes and True in self.said

    def set_waiting(self, waiting: bool) -> None:
        self.said.append(waiting)


class FakePoller:
    def __init__(self) -> None:
        self.waits_ms: list[int] = []

    def poll(self, timeout: int) -> None:
        self.waits_ms.append(timeout)


class World:
    """A pause without CPUs to spare, and what it waits for."""

    def __init__(self, sockets: "list[zmq.Socket[bytes]]", *, completes: bool) -> None:
        *of_link, frontends = sockets
        self.link, self.poller = FakeLink(of_link, completes=completes), FakePoller()
        self.pause = Pause(self.link, frontends)  # type: ignore[arg-type]
        self.pause._spins = False
        self.pause._poller = self.poller  # type: ignore[assignment]


@pytest.fixture
def sockets() -> Iterator["list[zmq.Socket[bytes]]"]:
    with zmq.Context() as context, ExitStack() as opened:
        yield [opened.enter_context(context.socket(zmq.DEALER)) for _ in range(3)]


def test_a_result_that_came_before_the_doorbell_was_asked_for_is_not_slept_through(
    sockets: "list[zmq.Socket[bytes]]",
) -> None:
    it = World(sockets, completes=True)
    it.pause.wait(oldest_step=1, timeout_s=5.0)
    assert it.poller.waits_ms == [0]
    assert it.link.said == [True, False]


def test_a_step_in_flight_bounds_the_wait(sockets: "list[zmq.Socket[bytes]]") -> None:
    it = World(sockets, completes=False)
    it.pause.wait(oldest_step=1, timeout_s=5.0)
    assert it.poller.waits_ms == [round(IN_FLIGHT_WAIT_S * 1000)]
    assert it.link.said == [True, False]


def test_without_one_it_waits_as_long_as_it_may(sockets: "list[zmq.Socket[bytes]]") -> None:
    it = World(sockets, completes=True)
    it.pause.wait(oldest_step=0, timeout_s=5.0)
    assert it.poller.waits_ms == [5000]
