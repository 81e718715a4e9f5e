"""Requests to simulate: made up at a rate, with lengths from a distribution."""

import math
import random
import re
from dataclasses import dataclass

SIGMA = 0.8
"""Spread of the logarithm of lengths that are given by their median."""


class WorkloadError(ValueError):
    """A workload cannot be read. The text is for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of a workload."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    prefix: tuple[int, ...] = ()
    """Names of the prompt's leading runs of `prefix_run` tokens: equal names, equal tokens."""
    prefix_run: int = 512


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths: `512`, `100-900` (uniform), `~512` (log-normal, by its median)."""

    least: int
    most: int
    is_median: bool = False

    @classmethod
    def parse(cls, text: str) -> "Lengths":
        match = re.fullmatch(r"(~?)(\d+)(?:-(\d+))?", text.strip())
        if match is None or (match[1] and match[3]) or not int(match[2]):
            raise WorkloadError(f"{text!r} is no length: write 512, 100-900 or ~512")
        return cls(int(match[2]), int(match[3] or match[2]), bool(match[1]))

    def draw(self, rng: random.Random) -> int:
        if self.is_median:
            return max(1, round(rng.lognormvariate(math.log(self.least), SIGMA)))
        return rng.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one tenant that come at random, `rate` a second on average."""

    tenant: str
    rate: float
    prompts: Lengths
    outputs: Lengths

    @classmethod
    def parse(cls, text: str, lengths: str) -> "Stream":
        """`RATE`, `TENANT:RATE`, or `TENANT:RATE:PROMPT,OUTPUT`, else with the `lengths` given."""
        parts = text.split(":")
        rate, own = parts[-1], lengths
        if len(parts) == 3:
            rate, own = parts[1:]
        tenant = parts[0] if len(parts) > 1 else ""
        prompts, _, outputs = own.partition(",")
        return cls(tenant, _parse_rate(rate, text), Lengths.parse(prompts), Lengths.parse(outputs))


def _parse_rate(rate: str, text: str) -> float:
    try:
        value = float(rate)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise WorkloadError(f"{text!r} has no rate: write 5 or tenant:5, in requests a second")
    return value


def poisson(streams: list[Stream], duration_s: float, seed: int) -> list[Arrival]:
    """Independent streams of requests over `duration_s`, by time."""
    arrivals = []
    for stream in streams:
        rng = random.Random(f"{seed} {stream.tenant}")
        at_s = rng.expovariate(stream.rate)
        while at_s < duration_s:
            arrivals.append(
                Arrival(
                    at_s=at_s,
                    prompt_tokens=stream.prompts.draw(rng),
                    output_tokens=stream.outputs.draw(rng),
                    tenant=stream.tenant,
                )
            )
            at_s += rng.expovariate(stream.rate)
    return sorted(arrivals, key=lambda arrival: arrival.at_s)
