"""The figures and the timeline that benches draw from records of steps."""

import numpy as np
import pytest

from bench.stack import Steps
from bench.steps import decode_phase
from bench.timeline import LANES, chrome_trace, phases_of, spans_of
from executor_svc.tracing import STEP

MS = 1_000_000


def records(count: int, *, step_ms: float, compute_ms: float, epoch: int = 1) -> Steps:
    """Steps of 4 rows, one every `step_ms`, on a device clock that is 7 s behind the host's."""
    steps = np.zeros(count, STEP)
    begin = 50 * MS + (np.arange(count) * step_ms * MS).astype(np.int64)
    end = begin + int(compute_ms * MS)
    steps["epoch"], steps["step"] = epoch, np.arange(1, count + 1)
    steps["rows"] = steps["tokens"] = 4
    steps["h2d_begin_ns"], steps["h2d_end_ns"] = begin - 3 * MS, begin - 2 * MS
    steps["compute_begin_ns"], steps["compute_end_ns"] = begin, end
    steps["d2h_begin_ns"], steps["d2h_end_ns"] = end, end + 1000
    host = 7_000 * MS
    steps["completed_ns"] = end + 1000 + host + 5000
    steps["written_ns"] = begin - 5 * MS + host
    steps["received_ns"], steps["submitted_ns"] = begin - 4 * MS + host, begin - 3 * MS + host
    return steps


def test_a_steady_phase() -> None:
    phase = decode_phase(records(40, step_ms=5.0, compute_ms=4.0), rows=4)
    assert phase.steps == 24
    assert phase.step_ms == pytest.approx(5.0)
    assert phase.busy_share == pytest.approx(0.8)
    assert phase.gap_us_median == pytest.approx(1000)
    assert phase.gap_us_max == pytest.approx(1000)
    assert phase.lead_ms_median == pytest.approx(2.0)
    assert phase.host_ms_median == pytest.approx(1.0)


def test_one_late_step_shows_in_the_mean_and_in_the_gaps() -> None:
    steps = records(40, step_ms=5.0, compute_ms=5.0)
    for name in ("compute_begin_ns", "compute_end_ns"):
        steps[name][20:] += 23 * MS
    phase = decode_phase(steps, rows=4)
    assert phase.gap_us_max == pytest.approx(23_000)
    assert phase.step_ms == pytest.approx(6.0)
    assert phase.step_ms_median == pytest.approx(5.0)


def test_steps_of_other_sizes_are_left_out() -> None:
    steps = records(60, step_ms=5.0, compute_ms=4.0)
    steps["tokens"][:20] = 900
    assert decode_phase(steps, rows=4).steps == 24
    with pytest.raises(ValueError, match="only 0 steady steps of 5 rows"):
        decode_phase(steps, rows=5)


def test_a_timeline_puts_host_and_device_on_one_clock() -> None:
    spans = spans_of(records(6, step_ms=5.0, compute_ms=4.0))
    compute = [span for span in spans if span.lane == "compute"]
    assert {span.lane for span in spans} == set(LANES)
    # Received 4 ms before; the host learnt of the end 5 us late.
    assert [round(span.begin_us) for span in compute] == [4005 + 5000 * i for i in range(6)]
    assert all(span.end_us - span.begin_us == pytest.approx(4000) for span in compute)
    assert all(span.end_us >= span.begin_us for span in spans)


def test_each_epoch_is_a_phase_of_the_trace() -> None:
    both = np.concatenate([
        records(30, step_ms=5.0, compute_ms=5.0, epoch=1),
        records(30, step_ms=6.0, compute_ms=5.0, epoch=2),
    ])  # fmt: skip
    both["h2d_end_ns"][30:] = both["compute_begin_ns"][30:]
    phases = phases_of(both, 5)
    assert list(phases) == [
        "epoch 1: overlap on, 4 rows, 5.00 ms a step",
        "epoch 2: overlap off, 4 rows, 6.00 ms a step",
    ]
    events = chrome_trace(phases)["traceEvents"]
    assert isinstance(events, list)
    assert sum(event["ph"] == "X" for event in events) == 2 * 5 * len(LANES)
