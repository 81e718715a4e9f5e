"""What must not be cut in two: Ctrl-C and SIGTERM, which may come anywhere, wait for its end.

Python runs handlers in the main thread between two instructions of it, whichever thread the kernel
chose. So the handlers are exchanged: a signal mask would have to be that of all threads, gRPC's
included, and the processes that are started meanwhile would inherit it.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """While this is entered, interrupts wait; at its end they do what they would have done.

    Where the first one raises, those behind it are dropped: they would come as it is raised, before
    any `__exit__` or `finally` has begun, and cut off what nobody does again. Whoever is in a hurry
    asks once more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # nothing interrupts it
        return
    found = {signum: signal.getsignal(signum) for signum in _INTERRUPTS}
    # One that ends the process or is ignored raises nothing here.
    handlers = {signum: handler for signum, handler in found.items() if callable(handler)}
    came: list[int] = []
    is_over = False

    def take(signum: int, frame: FrameType | None) -> None:
        """Passes on what comes when all is over: one that is left in place does no harm."""
        if is_over:
            handlers[signal.Signals(signum)](signum, frame)
        else:
            came.append(signum)

    try:
        for signum in handlers:
            signal.signal(signum, take)
        yield
    finally:
        is_over = True
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for late in came:
            signal.raise_signal(late)  # it may raise
