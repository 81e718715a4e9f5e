"""How much of the time the executor computed, from the timings in the step results."""

from collections import deque

from svc_wire.frames import StepTiming

WINDOW_NS = 5_000_000_000


class BusyMeter:
    """Sums the compute intervals of steps. Times are CLOCK_MONOTONIC or device time, in ns."""

    def __init__(self) -> None:
        self.busy_ns = 0
        """Computed since the start."""
        self._samples: deque[tuple[int, int]] = deque([(0, 0)])
        """(time, busy_ns then), at least a tenth of the window apart."""

    def add(self, timing: StepTiming, now_ns: int) -> None:
        self.busy_ns += max(0, timing.compute_end_ns - timing.compute_begin_ns)
        if now_ns - self._samples[-1][0] >= WINDOW_NS // 10:
            self._samples.append((now_ns, self.busy_ns))
            while len(self._samples) > 2 and now_ns - self._samples[1][0] > WINDOW_NS:
                self._samples.popleft()

    def share_since(self, begin_ns: int, busy_then_ns: int, now_ns: int) -> float:
        """Share of [begin:now) in which the executor computed, 0 to 1."""
        return min(1.0, (self.busy_ns - busy_then_ns) / max(1, now_ns - begin_ns))

    def recent_share(self, now_ns: int) -> float:
        """Share of the last seconds."""
        begin_ns, busy_then_ns = self._samples[0]
        return self.share_since(max(begin_ns, now_ns - WINDOW_NS), busy_then_ns, now_ns)
