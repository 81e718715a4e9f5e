"""What is told of the executor's pace: busy share, lead and gaps, over the last seconds."""

import pytest

from scheduler_svc.meter import SPAN_NS, WINDOW_SPANS, Meter
from svc_wire.frames import StepTiming

MS = 1_000_000
WINDOW_NS = SPAN_NS * WINDOW_SPANS
START_NS = 1000 * SPAN_NS
"""CLOCK_MONOTONIC is no zero at the start of a process."""


def step(begin_ms: float, took_ms: float, *, lead_ms: float = 0.0) -> StepTiming:
    """On the device's clock."""
    begin_ns = int(begin_ms * MS)
    return StepTiming(
        h2d_end_ns=begin_ns - int(lead_ms * MS),
        compute_begin_ns=begin_ns,
        compute_end_ns=begin_ns + int(took_ms * MS),
    )


def steady(meter: Meter, begin_ns: int, count: int, *, gap_ms: float, lead_ms: float = 3.0) -> int:
    """Steps of 10 ms, one after the other; returns CLOCK_MONOTONIC at their end."""
    now_ns = begin_ns
    for number in range(count):
        begin_ms = number * (10 + gap_ms)
        now_ns = begin_ns + int((begin_ms + 10) * MS)
        meter.add(step(begin_ms, 10, lead_ms=lead_ms), now_ns, chained=number > 0)
    return now_ns


def test_steady_work() -> None:
    meter = Meter()
    now_ns = steady(meter, START_NS, 1000, gap_ms=2.5)
    pace = meter.pace(now_ns)
    assert pace.busy_share == pytest.approx(0.8, abs=0.005)
    assert (pace.lead_ns, pace.gap_ns, pace.gap_ns_max) == (3 * MS, 2_500_000, 2_500_000)
    assert pace.busy_ns_total == meter.busy_ns == 10_000 * MS
    assert pace.chained_total == 999
    assert pace.lead_ns_total == 999 * 3 * MS
    assert pace.gap_ns_total == 999 * 2_500_000


def test_what_was_long_ago_is_forgotten_but_in_the_totals() -> None:
    meter = Meter()
    middle_ns = steady(meter, START_NS, 100, gap_ms=40, lead_ms=0)
    now_ns = steady(meter, middle_ns, 1000, gap_ms=0.5)
    pace = meter.pace(now_ns)
    assert (pace.lead_ns, pace.gap_ns, pace.gap_ns_max) == (3 * MS, 500_000, 500_000)
    assert pace.busy_share == pytest.approx(10 / 10.5, abs=0.005)
    assert pace.gap_ns_total == 99 * 40 * MS + 999 * 500_000


def test_the_longest_gap_stands_out_from_the_mean() -> None:
    meter = Meter()
    now_ns = steady(meter, START_NS, 50, gap_ms=1)
    end_ms = 49 * 11 + 10
    meter.add(step(end_ms + 30, 10, lead_ms=3), now_ns + 40 * MS, chained=True)
    pace = meter.pace(now_ns + 40 * MS)
    assert pace.gap_ns_max == 30 * MS
    assert pace.gap_ns == (49 * MS + 30 * MS) // 50


def test_a_server_without_work_has_no_gaps_and_is_not_busy() -> None:
    meter = Meter()
    now_ns = steady(meter, START_NS, 200, gap_ms=1)
    idle_ns = now_ns + 60_000 * MS
    assert meter.pace(idle_ns).busy_share == 0
    # The next burst begins after a minute, which is no gap.
    meter.add(step(62_000, 10), idle_ns, chained=False)
    pace = meter.pace(idle_ns)
    assert (pace.lead_ns, pace.gap_ns, pace.gap_ns_max) == (0, 0, 0)
    assert pace.chained_total == 199
    assert pace.busy_share == pytest.approx(10 * MS / WINDOW_NS, rel=0.12)


def test_half_idle_is_half_busy() -> None:
    meter = Meter()
    now_ns = steady(meter, START_NS, 1000, gap_ms=0)
    assert meter.pace(now_ns + WINDOW_NS // 2).busy_share == pytest.approx(0.5, abs=0.06)


def test_an_epoch_begins_with_a_clock_of_its_own() -> None:
    """Its zero may lie before or after what the last epoch told."""
    meter = Meter()
    meter.add(step(5_000, 10), START_NS, chained=False)
    meter.add(step(0, 10), START_NS + MS, chained=False)
    meter.add(step(12, 10, lead_ms=4), START_NS + 2 * MS, chained=True)
    pace = meter.pace(START_NS + 2 * MS)
    assert (pace.gap_ns_max, pace.lead_ns, pace.chained_total) == (2 * MS, 4 * MS, 1)


def test_a_batch_that_came_too_late_has_no_lead() -> None:
    """Nor does a clock that is a little off make anything negative."""
    meter = Meter()
    meter.add(step(0, 10), START_NS, chained=False)
    meter.add(step(9.999, 10, lead_ms=-0.001), START_NS + 10 * MS, chained=True)
    pace = meter.pace(START_NS + 10 * MS)
    assert (pace.lead_ns, pace.gap_ns, pace.gap_ns_max) == (0, 0, 0)


def test_nothing_has_happened_yet() -> None:
    pace = Meter().pace(START_NS)
    assert pace.busy_share == pace.lead_ns == pace.gap_ns == pace.gap_ns_max == 0


def test_a_step_longer_than_the_window_does_not_make_it_more_than_busy() -> None:
    meter = Meter()
    meter.add(step(0, 9_000), START_NS, chained=False)
    assert meter.pace(START_NS).busy_share == 1.0
