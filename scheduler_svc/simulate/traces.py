"""Public traces of real services, told apart by their first line.

    Azure LLM inference   CSV    TIMESTAMP,ContextTokens,GeneratedTokens
    BurstGPT              CSV    Timestamp,[Session ID,Elapsed time,]Model,Request tokens,...
    Mooncake              JSONL  {"timestamp": ms, "input_length", "output_length", "hash_ids"}

BurstGPT's models stand for tenants; Mooncake's `hash_ids` name
the prompt's runs of 512 tokens, so that the prefix cache sees what it saw there.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TextIO

from scheduler_svc.simulate.workload import Arrival, WorkloadError

Row = dict[str, str]


def read_trace(path: Path, *, limit: int | None = None, speed: float = 1.0) -> list[Arrival]:
    """The requests of a trace, by time from 0, compressed `speed` times. Raises WorkloadError."""
    try:
        with path.open(newline="") as file:
            arrivals = list(_read(file))
    except (OSError, ValueError, KeyError) as error:
        raise WorkloadError(f"{path} cannot be read as a trace: {error!r}") from error
    arrivals.sort(key=lambda arrival: arrival.at_s)
    if not arrivals:
        raise WorkloadError(f"{path} holds no requests")
    first_s = arrivals[0].at_s
    return [replace(a, at_s=(a.at_s - first_s) / speed) for a in arrivals[:limit]]


def _read(file: TextIO) -> Iterator[Arrival]:
    start = file.readline()
    file.seek(0)
    if start.lstrip().startswith("{"):
        return map(_mooncake, map(json.loads, filter(str.strip, file)))
    reader = csv.DictReader(file)
    return _filled(map(_csv_kind(start), reader))


def _csv_kind(header: str) -> Callable[[Row], Arrival]:
    if "ContextTokens" in header:
        return _azure
    if "Request tokens" in header:
        return _burstgpt
    raise WorkloadError(f"unknown columns: {header.strip()}")


def _filled(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    """Without those that failed at their time: they have no output."""
    return (a for a in arrivals if a.output_tokens > 0 and a.prompt_tokens > 0)


def _azure(row: Row) -> Arrival:
    # Seven digits of a second, one more than datetime reads.
    date, _, fraction = row["TIMESTAMP"].partition(".")
    digits = "".join(digit for digit in fraction[:9] if digit.isdigit())
    seconds = datetime.fromisoformat(f"{date}+00:00").timestamp()
    return Arrival(
        at_s=seconds + float(f"0.{digits or 0}"),
        prompt_tokens=int(row["ContextTokens"]),
        output_tokens=int(row["GeneratedTokens"]),
    )


def _burstgpt(row: Row) -> Arrival:
    return Arrival(
        at_s=float(row["Timestamp"]),
        prompt_tokens=int(row["Request tokens"]),
        output_tokens=int(row["Response tokens"]),
        tenant=row["Model"],
    )


def _mooncake(row: dict[str, int | list[int]]) -> Arrival:
    timestamp, prompt, output, names = (
        row[key] for key in ("timestamp", "input_length", "output_length", "hash_ids")
    )
    if not (
        isinstance(timestamp, int | float)
        and isinstance(prompt, int)
        and isinstance(output, int)
        and isinstance(names, list)
    ):
        raise WorkloadError(f"not a line of a Mooncake trace: {row}")
    return Arrival(
        at_s=timestamp / 1e3,
        prompt_tokens=prompt,
        output_tokens=max(1, output),
        prefix=tuple(names),
    )
