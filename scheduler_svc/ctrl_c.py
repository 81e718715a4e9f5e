"""Ctrl-C in tools that run policies: the guard would take it for something that a policy raised."""

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
