"""A policy that does not answer is interrupted, and so replaced: it must not hold up everybody.

A timer's signal comes every LOOK_S, whatever the process does. If it finds a question open in the
same turn of the loop as the time before, and the answers of that turn took ANSWER_S, it raises
PolicyStalled, in the main thread, which is in the policy's code; the core's guard does the rest.
So one long answer is as good as a thousand short ones, and a process that was stopped for a while
blames nobody. Loops and sleeps end like that. What never returns to the interpreter (a loop in C)
cannot be ended from within: then the scheduler shows no pulse, and its supervisor replaces it.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from scheduler_svc.core import PolicyStalled, Question

LOOK_S = 0.5
ANSWER_SHARE = 0.8
"""Of the time between two looks: less than all, since the timer may be early."""
ANSWER_S = ANSWER_SHARE * LOOK_S
"""A policy has at least so long for its answers of one turn, and at most two looks."""

LOAD_S = 10.0
"""The time between two looks where a policy is loaded before anybody waits. It has two, 20 s in
all: its module may import a lot."""


@contextmanager
def watching(question: Question, look_s: float = LOOK_S) -> Iterator[None]:
    """While this is entered, which must be in the main thread."""
    answer_s = ANSWER_SHARE * look_s
    seen: int | None = None

    def look(_signum: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if question.is_open and question.turn == seen and question.turn_took_s >= answer_s:
            raise PolicyStalled
        seen = question.turn if question.is_open else None

    before = signal.signal(signal.SIGALRM, look)
    timer = signal.setitimer(signal.ITIMER_REAL, look_s, look_s)
    try:
        yield
    finally:
        # An interpreter that ends gives up its handlers; a signal after that would kill.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
