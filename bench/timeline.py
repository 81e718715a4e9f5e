"""A timeline of some decode steps: a Perfetto (Chrome) trace, and a picture of the same.

    python -m bench.decode --shape llama-1b --overlap both --trace /tmp/steps
    python -m bench.timeline /tmp/steps --out timeline.json --png timeline.png

Lanes: the scheduler (committing and planning), the executor's host (enqueueing a step), and the
device's three streams. Each epoch of the records is a row of the picture: run the bench with the
overlap on and off, and the gaps close from one to the other.

Host and device have clocks of their own. Their distance is taken from the step whose end the host
learnt of soonest, so that device lanes may lie a few microseconds too late, never too early.
"""

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from bench.stack import Steps
from executor_svc.tracing import STEP

_COUNT, _DRAWN = 36, 8

LANES = ["scheduler", "executor", "H2D", "compute", "D2H"]


class Span(NamedTuple):
    lane: str
    step: int
    begin_us: float
    end_us: float


def spans_of(steps: Steps) -> list[Span]:
    """All spans of consecutive steps of one epoch; time zero is the first plan's receipt."""
    zero = int(steps["received_ns"][0])
    offset = int((steps["completed_ns"] - steps["d2h_end_ns"]).min())
    spans = []
    for record in steps:
        step, written = int(record["step"]), int(record["written_ns"])
        earlier = steps["completed_ns"][steps["completed_ns"] < written]
        begin = int(earlier.max()) if len(earlier) else written
        host = [
            ("scheduler", begin, written),
            ("executor", int(record["received_ns"]), int(record["submitted_ns"])),
        ]
        device = [
            (lane, int(record[f"{name}_begin_ns"]) + offset, int(record[f"{name}_end_ns"]) + offset)
            for lane, name in (("H2D", "h2d"), ("compute", "compute"), ("D2H", "d2h"))
        ]
        spans += [
            Span(lane, step, (b - zero) / 1e3, (e - zero) / 1e3) for lane, b, e in host + device
        ]
    return spans


def chrome_trace(phases: dict[str, list[Span]]) -> dict[str, object]:
    """The JSON that ui.perfetto.dev and chrome://tracing read; a process for each phase."""
    events: list[dict[str, object]] = []
    for pid, (title, spans) in enumerate(phases.items(), 1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}})
        for tid, lane in enumerate(LANES):
            names = {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid}
            events.append({**names, "args": {"name": lane}})
        events += [
            {
                "ph": "X", "name": f"step {span.step}", "pid": pid, "tid": LANES.index(span.lane),
                "ts": span.begin_us, "dur": max(span.end_us - span.begin_us, 0.001),
            }
            for span in spans
        ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def draw(phases: dict[str, list[Span]], path: Path) -> None:
    """The phases below each other, on one scale; odd and even steps (slots A and B) differ."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(phases), 1, figsize=(14, 2.4 * len(phases)), sharex=True, squeeze=False
    )
    for axis, (title, spans) in zip(axes[:, 0], phases.items(), strict=True):
        for span in spans:
            axis.barh(
                LANES.index(span.lane), max(span.end_us - span.begin_us, 4) / 1e3,
                left=span.begin_us / 1e3, height=0.7, edgecolor="black", linewidth=0.3,
                color=("#3b6ea5", "#e08e45")[span.step % 2],
            )  # fmt: skip
        axis.set_yticks(range(len(LANES)), LANES)
        axis.invert_yaxis()
        axis.set_title(title, loc="left", fontsize=10)
    axes[-1, 0].set_xlabel("ms")
    figure.tight_layout()
    figure.savefig(path, dpi=140)


def phases_of(records: Steps, count: int) -> dict[str, list[Span]]:
    """From each epoch, `count` steps from the middle of its last long decode phase."""
    phases = {}
    for epoch in np.unique(records["epoch"]):
        steps = records[records["epoch"] == epoch]
        rows = steps["rows"][steps["rows"] == steps["tokens"]].max(initial=1)
        decode = steps[(steps["rows"] == rows) & (steps["tokens"] == rows)]
        middle = decode[len(decode) // 2 :][:count]
        if len(middle) < 3:
            continue
        begin = middle["compute_begin_ns"]
        step_ms = int(begin[-1] - begin[0]) / (len(middle) - 1) / 1e6
        early = float(np.median(begin - middle["h2d_end_ns"])) > 50e3
        overlap = "on" if early else "off"
        phases[f"epoch {epoch}: overlap {overlap}, {rows} rows, {step_ms:.2f} ms a step"] = (
            spans_of(middle)
        )
    return phases


def write_timeline(
    records: Path, out: Path, png: Path | None, count: int = _COUNT, drawn: int = _DRAWN
) -> None:
    """The trace of `count` steps of each epoch, and a picture of `drawn` of them."""
    found = np.fromfile(records, STEP)
    out.write_text(json.dumps(chrome_trace(phases_of(found, count))))
    if png is not None:
        draw(phases_of(found, drawn), png)


def main(
    records: Annotated[Path, typer.Argument(help="What bench.decode --trace kept.")],
    out: Annotated[Path, typer.Option(help="The trace for ui.perfetto.dev.")] = Path(
        "timeline.json"
    ),
    png: Annotated[Path | None, typer.Option(help="Draw a picture as well.")] = None,
    count: Annotated[int, typer.Option(min=3, help="Steps of each epoch.")] = _COUNT,
    drawn: Annotated[int, typer.Option(min=3, help="Steps in the picture.")] = _DRAWN,
) -> None:
    write_timeline(records, out, png, count, drawn)


if __name__ == "__main__":
    typer.run(main)
