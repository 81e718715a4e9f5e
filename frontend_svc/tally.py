"""What is counted of the requests, in plain numbers.

The event loop only adds, and a scrape only reads, in a thread of its own: see metrics.py. Nothing
here is done for a token; a message costs two looks at the clock, an answer a few additions.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import grpc

from frontend_svc.responses import Times
from twostroke.v1 import generation_pb2 as pb

_STEPS = (1.0, 2.5, 5.0)


def _decades(first: int, last: int) -> tuple[float, ...]:
    """1, 2.5 and 5 times 10 ** `first`, and so on up to 10 ** `last` itself."""
    powers = range(first, last)
    return (*(float(f"{step}e{power}") for power in powers for step in _STEPS), 10.0**last)


Labelled = Counter[tuple[str, ...]]
"""Counts by the values of labels."""


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Not cumulative; the last is of those above every bound."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Tally:
    """Of one front end, since its start. Times are seconds."""

    def __init__(self) -> None:
        self.started: Labelled = Counter()
        """Calls, by method."""
        self.ended: Labelled = Counter()
        """By method, status code and reason; the reason is that of our ErrorInfo."""
        self.answers: Labelled = Counter()
        """That came to a good end, by finish reason."""
        self.prompt_tokens = 0
        """Of those answers."""
        self.cached_tokens = 0
        """Of these, how many the prefix cache spared."""
        self.output_tokens = 0
        """Of all requests, however they ended."""
        self.queued = Histogram(_decades(-3, 2))
        """From the arrival to the first step with a row of the request."""
        self.first_token = Histogram(_decades(-3, 2))
        """From the arrival to the first token."""
        self.token_interval = Histogram(_decades(-4, 1))
        """Between two tokens: the mean of an answer."""
        self.pause = Histogram(_decades(-3, 2))
        """The longest time that an answer stood still between two messages."""
        self.duration = Histogram(_decades(-2, 3))
        """From the arrival to the end."""

    def begin(self, method: str) -> None:
        self.started[method,] += 1

    def end(self, method: str, code: grpc.StatusCode, reason: str = "") -> None:
        self.ended[method, code.name, reason] += 1

    def begin_answer(self, times: Times) -> None:
        """Its first token is here."""
        self.first_token.observe(times.first_token - times.arrived)

    def end_answer(self, finish: pb.Finish, times: Times, new_tokens: int, now: float) -> None:
        """A good end; `new_tokens` are those that came from here, if the stream was resumed."""
        reason = pb.FinishReason.Name(finish.reason).removeprefix("FINISH_REASON_")
        self.answers[reason,] += 1
        self.prompt_tokens += finish.usage.prompt_tokens
        self.cached_tokens += finish.usage.cached_tokens
        self.queued.observe(finish.timings.queued_ms / 1e3)
        self.duration.observe(now - times.arrived)
        if new_tokens > 1:
            self.token_interval.observe((now - times.first_token) / (new_tokens - 1))
            self.pause.observe(times.pause)
