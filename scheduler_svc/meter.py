"""How well the executor is kept at work, from the timings in the step results.

    step N-1  ──h2d──►          ▐═══ compute ═══▌
    step N           ──h2d──►|◄──── lead ────────┼gap►▐═══ compute ═══▌

The lead of a step is how long its batch lay ready on the device before it was computed; the gap is
the device's time between two steps. Both say something only where work was there: of a step that
was planned while the one before was in flight, or at once when that was committed (`chained`). So
an idle server has no gaps, and neither has the first step of an epoch, whose clock begins anew.
"""

from collections import deque
from dataclasses import dataclass

from svc_wire.frames import StepTiming
from svc_wire.frontend_link import Pace

SPAN_NS = 500_000_000
WINDOW_SPANS = 10
"""What is told of the last seconds covers this span and the nine before it."""


@dataclass(slots=True)
class _Span:
    """One span with a step in it: the sums before its first one, and its longest gap."""

    number: int
    """Its begin on CLOCK_MONOTONIC, in spans."""
    busy_ns: int
    chained: int
    lead_ns: int
    gap_ns: int
    gap_ns_max: int = 0


class Meter:
    """Sums over steps. `now_ns` is CLOCK_MONOTONIC; timings differ by the device's clock."""

    def __init__(self) -> None:
        self.busy_ns = 0
        """Computed since the start."""
        self._chained = 0
        self._lead_ns = 0
        self._gap_ns = 0
        self._end_ns = 0
        """On the device's clock: when the last step had been computed."""
        self._spans: deque[_Span] = deque(maxlen=WINDOW_SPANS)

    def add(self, timing: StepTiming, now_ns: int, *, chained: bool) -> None:
        """A step was committed."""
        span = self._span(now_ns // SPAN_NS)
        begin_ns = timing.compute_begin_ns
        if chained:
            gap_ns = max(0, begin_ns - self._end_ns)
            self._chained += 1
            self._lead_ns += max(0, begin_ns - timing.h2d_end_ns)
            self._gap_ns += gap_ns
            if gap_ns > span.gap_ns_max:
                span.gap_ns_max = gap_ns
        self._end_ns = timing.compute_end_ns
        self.busy_ns += max(0, self._end_ns - begin_ns)

    def _span(self, number: int) -> _Span:
        if not self._spans or self._spans[-1].number != number:
            self._spans.append(self._begin(number))
        return self._spans[-1]

    def _begin(self, number: int) -> _Span:
        return _Span(number, self.busy_ns, self._chained, self._lead_ns, self._gap_ns)

    def share_since(self, begin_ns: int, busy_then_ns: int, now_ns: int) -> float:
        """Share of [begin:now) in which the executor computed, 0 to 1."""
        return min(1.0, (self.busy_ns - busy_then_ns) / max(1, now_ns - begin_ns))

    def pace(self, now_ns: int) -> Pace:
        """Of the last seconds, and since the start."""
        first = now_ns // SPAN_NS - WINDOW_SPANS + 1
        while self._spans and self._spans[0].number < first:
            self._spans.popleft()
        before = self._spans[0] if self._spans else self._begin(first)
        chained = max(1, self._chained - before.chained)
        return Pace(
            busy_share=self.share_since(first * SPAN_NS, before.busy_ns, now_ns),
            lead_ns=(self._lead_ns - before.lead_ns) // chained,
            gap_ns=(self._gap_ns - before.gap_ns) // chained,
            gap_ns_max=max((span.gap_ns_max for span in self._spans), default=0),
            busy_ns_total=self.busy_ns,
            chained_total=self._chained,
            lead_ns_total=self._lead_ns,
            gap_ns_total=self._gap_ns,
        )
