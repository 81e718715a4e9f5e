"""Ctrl-C while a policy's code runs: it would be taken for something that the policy raised.

For tools, which run that code all the time, and for whoever loads a policy. A scheduler that serves
has a handler of its own, which raises nothing.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_at_once() -> Iterator[None]:
    """While this is entered, which must be in the main thread, SIGINT ends the process."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
