"""Three streams, the events between them, and what the host learns from the events.

    H2D      wait slot free ─ copy plan ─► e1
    compute                          e1 ─ graph ─► e2
    D2H                                       e2 ─ copy result ─► e3 ─► the host

None of them is the default stream, which would serialise all. The host enqueues and returns; it
learns of the end of a step from e3 and never synchronises the device. A slot is free when the step
before last has computed; the streams wait for that, the host need not.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.cuda import Event, Stream

from svc_wire.frames import StepTiming
from svc_wire.ring import DEPTH_MAX

_ANCHOR_MAX_MS = 10_000.0
"""Distances between events are float32 milliseconds: beyond this they would lose microseconds."""


def _timed() -> Event:
    return Event(enable_timing=True)


@dataclass(slots=True, eq=False)
class Flight:
    """One step in flight: its events, and where its result arrives on the host."""

    host_result: Tensor
    h2d_begin: Event = field(default_factory=_timed)
    h2d_end: Event = field(default_factory=_timed)
    compute_begin: Event = field(default_factory=_timed)
    compute_end: Event = field(default_factory=_timed)
    d2h_begin: Event = field(default_factory=_timed)
    d2h_end: Event = field(default_factory=_timed)
    epoch: int = 0
    step: int = 0
    rows: int = 0
    lines: int = 0
    """Lines of `host_result` that the step tells."""
    received_ns: int = 0
    submitted_ns: int = 0

    def events(self) -> tuple[Event, ...]:
        """In the order of StepTiming's device stations."""
        return (
            self.h2d_begin, self.h2d_end, self.compute_begin, self.compute_end,
            self.d2h_begin, self.d2h_end,
        )  # fmt: skip


class Pipeline:
    """Enqueues steps on the three streams. Flights are reused in turn."""

    def __init__(self, device: torch.device, lines_max: int, rows_max: int) -> None:
        self.h2d, self.compute, self.d2h = (Stream(device) for _ in range(3))
        # One more than may be in flight: a result is read after the next step was submitted.
        self._flights = [
            Flight(torch.zeros(lines_max, rows_max, dtype=torch.int32, pin_memory=True))
            for _ in range(DEPTH_MAX + 2)
        ]
        self._count = 0
        self._slot_users: list[Flight | None] = [None, None]
        self._clock = _DeviceClock(self.compute)

    def claim(self, slot: int) -> Flight:
        """The flight for the next step in `slot`; its host buffers are free when this returns."""
        previous = self._slot_users[slot]
        if previous is not None:
            # Pinned memory that the previous copy read may be written now. It was copied before
            # its step computed, two steps ago: this waits only when the host is far ahead.
            previous.h2d_end.synchronize()
        flight = self._flights[self._count % len(self._flights)]
        self._count += 1
        return flight

    def enqueue(
        self,
        flight: Flight,
        slot: int,
        load: Callable[[], None],
        prepare: Callable[[], None],
        run: Callable[[], None],
        result: Tensor,
    ) -> None:
        """Enqueues load, run and the copy of `result` [lines, rows_max], each on its stream.

        `prepare` goes before run, on the same stream; it does not count as computing.
        """
        previous = self._slot_users[slot]
        with torch.cuda.stream(self.h2d):
            if previous is not None:
                self.h2d.wait_event(previous.compute_end)
            flight.h2d_begin.record(self.h2d)
            load()
            flight.h2d_end.record(self.h2d)
        with torch.cuda.stream(self.compute):
            self.compute.wait_event(flight.h2d_end)
            if previous is not None:
                self.compute.wait_event(previous.d2h_end)
            prepare()
            flight.compute_begin.record(self.compute)
            run()
            flight.compute_end.record(self.compute)
        with torch.cuda.stream(self.d2h):
            self.d2h.wait_event(flight.compute_end)
            flight.d2h_begin.record(self.d2h)
            # Whole lines: less would not be contiguous, and such a copy blocks the host.
            flight.lines = len(result)
            flight.host_result[: flight.lines].copy_(result, non_blocking=True)
            flight.d2h_end.record(self.d2h)
        self._slot_users[slot] = flight
        flight.submitted_ns = time.monotonic_ns()

    def timing(self, flight: Flight) -> StepTiming:
        """When a step that is complete passed its stations."""
        completed_ns = time.monotonic_ns()
        device = self._clock.read(flight)
        return StepTiming(flight.received_ns, flight.submitted_ns, completed_ns, *device)

    def drain(self) -> None:
        """Waits for whatever is enqueued; between epochs only."""
        for stream in (self.h2d, self.compute, self.d2h):
            stream.synchronize()
        self._slot_users = [None, None]


class _DeviceClock:
    """Device times in ns since the first event.

    A moving anchor keeps the distances between steps exact; those within a step are taken from its
    own first event, so that they are exact after any pause.
    """

    def __init__(self, stream: Stream) -> None:
        self._anchor = _timed()
        self._anchor_ns = 0
        self._anchor.record(stream)

    def read(self, flight: Flight) -> list[int]:
        first, *later = flight.events()
        distance_ms = self._anchor.elapsed_time(first)
        first_ns = self._anchor_ns + round(distance_ms * 1e6)
        times = [first_ns, *(first_ns + round(first.elapsed_time(e) * 1e6) for e in later)]
        if distance_ms > _ANCHOR_MAX_MS:
            # The flight's own event becomes the anchor; the flight gets a new one.
            self._anchor, flight.h2d_begin = first, _timed()
            self._anchor_ns = first_ns
        return times
