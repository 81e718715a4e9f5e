"""What the soak calls a stall."""

import numpy as np
import pytest

from executor_svc.tracing import STEP

pytestmark = pytest.mark.model

MS = 1_000_000


def steps(*spans_ms: tuple[float, float]) -> np.ndarray:
    """Records of steps that compute at these times; the host's clock is the device's."""
    records = np.zeros(len(spans_ms), STEP)
    records["step"] = np.arange(len(spans_ms))
    begin, end = (np.array(spans_ms) * MS).astype(np.int64).T
    records["compute_begin_ns"], records["compute_end_ns"] = begin, end
    records["received_ns"], records["completed_ns"] = begin, end
    return records


def test_long_steps_and_pauses_between_them_are_stalls() -> None:
    from bench.soak import stalls

    found = stalls(steps((1, 3), (3, 90), (91, 93), (193, 195)), 50, [])
    assert found == [(1, "step", 87.0), (3, "pause", 100.0)]


def test_time_without_requests_is_none() -> None:
    from bench.soak import stalls

    records = steps((1, 3), (203, 205), (305, 307))
    assert stalls(records, 50, [202 * MS]) == [(2, "pause", 100.0)]
    assert stalls(records, 50, [202 * MS, 304 * MS]) == []
    assert stalls(records, 50, [202 * MS, 220 * MS]) == [(2, "pause", 85.0)], "it came, and waited"
