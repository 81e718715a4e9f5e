"""A policy that does not answer is interrupted, and so replaced: it must not hold up everybody.

A timer's signal comes every ANSWER_S, whatever the process does. If it finds the same question open
as the time before, it raises PolicyStalled, in the main thread, which is in the policy's code; the
core's guard does the rest. Loops and sleeps end like that. What never returns to the interpreter (a
loop in C) cannot be ended from within: then the scheduler shows no pulse, and its supervisor
replaces it.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from scheduler_svc.core import PolicyStalled, Question

ANSWER_S = 0.5
"""A policy has at least so long to answer a question, and at most twice as long."""


@contextmanager
def watching(question: Question) -> Iterator[None]:
    """While this is entered, which must be in the main thread."""
    seen = 0

    def look(_signum: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if question.is_open and question.number == seen:
            raise PolicyStalled
        seen = question.number if question.is_open else 0

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, ANSWER_S, ANSWER_S)
    try:
        yield
    finally:
        # An interpreter that ends gives up its handlers; a signal after that would kill.
        signal.setitimer(signal.ITIMER_REAL, 0)
