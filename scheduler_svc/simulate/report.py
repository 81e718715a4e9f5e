"""What a simulation says: one line a policy, one a tenant, what memory cost, and a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.table import Table

from scheduler_svc.simulate.machine import Life, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = Sequence[float] | npt.NDArray[np.float64]
POINTS_MAX = 500
"""Points of a curve."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of some requests; NaN where there is nothing to count."""

    requests: int
    whole: int
    refused: int
    missed: int
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    preemptions: int


def summarise(lives: Sequence[Life], end_s: float) -> Summary:
    ttft_s = [life.first_token_s - life.arrival.at_s for life in lives]
    return Summary(
        requests=len(lives),
        whole=sum(life.is_whole for life in lives),
        refused=sum(life.refused for life in lives),
        missed=sum(life.is_missed for life in lives),
        tokens_per_s=sum(life.output_tokens for life in lives) / max(end_s, 1e-9),
        ttft_p50_s=percentile(ttft_s, 50),
        ttft_p99_s=percentile(ttft_s, 99),
        preemptions=sum(life.preemptions for life in lives),
    )


def percentile(values: Values, q: float) -> float:
    """Of those that are numbers; NaN if none is."""
    known = np.asarray(values, float)
    known = known[~np.isnan(known)]
    return float(np.percentile(known, q)) if len(known) else float("nan")


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all are equal, 1 / n if one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else float("nan")


def by_tenant(lives: Sequence[Life]) -> dict[str, list[Life]]:
    found: dict[str, list[Life]] = {}
    for life in lives:
        found.setdefault(life.arrival.tenant, []).append(life)
    return dict(sorted(found.items()))


def fairness(outcome: Outcome) -> float:
    """Jain's index over tenants of the mean speed of their answers, queueing included.

    The speed of an answer is its tokens divided by the time from arrival to end.
    """
    speeds = []
    for lives in by_tenant(outcome.lives).values():
        whole = [life for life in lives if life.is_whole]
        speed = [life.output_tokens / (life.end_s - life.arrival.at_s) for life in whole]
        speeds.append(float(np.mean(speed)) if speed else 0.0)
    return jain(speeds)


def table(outcomes: Sequence[Outcome]) -> Table:
    """One line a policy."""
    result = Table("policy", box=None)
    for column in ("tokens/s", "TTFT p50 s", "p99 s", "ITL p50 ms", "p99 ms", "Jain", "whole",
                   "refused", "missed", "pre-empted", "reliefs"):  # fmt: skip
        result.add_column(column, justify="right")
    for outcome in outcomes:
        found = summarise(outcome.lives, outcome.end_s)
        result.add_row(
            outcome.policy,
            f"{found.tokens_per_s:,.0f}",
            f"{found.ttft_p50_s:.3f}",
            f"{found.ttft_p99_s:.3f}",
            f"{percentile(outcome.gaps_s, 50) * 1e3:.1f}",
            f"{percentile(outcome.gaps_s, 99) * 1e3:.1f}",
            f"{fairness(outcome):.3f}",
            f"{found.whole}/{found.requests}",
            str(found.refused),
            str(found.missed),
            str(outcome.preemptions),
            str(outcome.reliefs),
        )
    return result


def tenant_table(outcomes: Sequence[Outcome]) -> Table:
    """One line a policy and tenant."""
    result = Table("policy", "tenant", box=None)
    for column in ("requests", "tokens/s", "TTFT p50 s", "p99 s", "missed"):
        result.add_column(column, justify="right")
    for outcome in outcomes:
        for tenant, lives in by_tenant(outcome.lives).items():
            found = summarise(lives, outcome.end_s)
            result.add_row(
                outcome.policy,
                tenant or "-",
                str(found.requests),
                f"{found.tokens_per_s:,.0f}",
                f"{found.ttft_p50_s:.3f}",
                f"{found.ttft_p99_s:.3f}",
                str(found.missed),
            )
    return result


def memory_table(outcomes: Sequence[Outcome]) -> Table:
    """One line a policy: what it took to go on with those who were pre-empted."""
    result = Table("policy", box=None)
    for column in ("pre-empted", "blocks out", "blocks in", "time copying",
                   "tokens again", "time for them"):  # fmt: skip
        result.add_column(column, justify="right")
    for outcome in outcomes:
        result.add_row(
            outcome.policy,
            f"{outcome.preemptions:,}",
            f"{outcome.copies_out:,}",
            f"{outcome.copies_in:,}",
            f"{outcome.copying_s / outcome.end_s:.1%}",
            f"{outcome.recomputed_tokens:,}",
            f"{outcome.recomputing_s / outcome.end_s:.1%}",
        )
    return result


def draw(outcomes: Sequence[Outcome], path: Path, title: str) -> None:
    """Draws how long first tokens took, a curve for each policy and tenant, and each one's gaps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    first, gaps = figure.subplots(1, 2)
    styles = ("-", "--", ":", "-.")
    for number, outcome in enumerate(outcomes):
        colour = f"C{number}"
        for style, (tenant, lives) in zip(styles, by_tenant(outcome.lives).items(), strict=False):
            waits = [life.first_token_s - life.arrival.at_s for life in lives]
            label = f"{outcome.policy} · {tenant}" if tenant else outcome.policy
            _curve(first, waits, colour, style, label)
        _curve(gaps, outcome.gaps_s * 1e3, colour, "-", outcome.policy)
    first.set(xlabel="time to the first token, s", ylabel="share of requests", xscale="log")
    gaps.set(xlabel="time to the next token, ms", ylabel="share of tokens", xscale="log")
    for axes in (first, gaps):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path)


def _curve(axes: "Axes", values: Values, colour: str, style: str, label: str) -> None:
    known = np.sort(np.asarray(values, float))
    known = known[~np.isnan(known)]
    if len(known) > POINTS_MAX:
        known = known[np.linspace(0, len(known) - 1, POINTS_MAX).astype(int)]
    shares = np.linspace(0, 1, len(known))
    axes.plot(known, shares, color=colour, linestyle=style, label=label)
