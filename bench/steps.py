"""What the records of steps say: time a step, GPU-busy share, gaps, how early batches came."""

from dataclasses import dataclass

import numpy as np

from bench.stack import Steps

_EDGE = 8
"""Steps left out at each end of a decode phase: not steady yet, or not any more."""


@dataclass(frozen=True, slots=True)
class DecodePhase:
    """The steady decode steps of a run, all with the same number of rows."""

    steps: int
    step_ms: float
    """From the begin of the first to the begin of the last, by the number of steps."""
    step_ms_median: float
    busy_share: float
    """Of that time, what lay between begin and end of a step's computing, by events."""
    gap_us_median: float
    gap_us_max: float
    """From the end of one step's computing to the begin of the next."""
    lead_ms_median: float
    """How long before it was needed a batch lay ready on the device."""
    host_ms_median: float
    """From the executor's receipt of a plan until everything was enqueued."""


def decode_phase(steps: Steps, rows: int) -> DecodePhase:
    """Raises ValueError if there are too few steps of `rows` rows and as many tokens."""
    found = steps[(steps["rows"] == rows) & (steps["tokens"] == rows)][_EDGE:-_EDGE]
    if len(found) < 3:
        raise ValueError(f"only {len(found)} steady steps of {rows} rows: ask for more new tokens")
    begin, end = found["compute_begin_ns"], found["compute_end_ns"]
    whole = int(begin[-1] - begin[0])
    gaps = (begin[1:] - end[:-1]) / 1e3
    return DecodePhase(
        steps=len(found),
        step_ms=whole / (len(found) - 1) / 1e6,
        step_ms_median=float(np.median(np.diff(begin))) / 1e6,
        busy_share=float((end - begin)[:-1].sum()) / whole,
        gap_us_median=float(np.median(gaps)),
        gap_us_max=float(gaps.max()),
        lead_ms_median=float(np.median(begin - found["h2d_end_ns"])) / 1e6,
        host_ms_median=float(np.median(found["submitted_ns"] - found["received_ns"])) / 1e6,
    )
