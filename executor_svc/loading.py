"""Making the runner in a thread of its own, so that peers hear from this process all the while."""

import threading
import time
from collections.abc import Callable

from executor_svc.mailbox import Mailbox
from executor_svc.runner import Runner
from svc_wire.executor_link import Beat, Hello

BEAT_S = 1.0


class Loading:
    """Calls `load` once. The thread is a daemon: an impatient process may leave without it."""

    def __init__(
        self, load: Callable[[], Runner], mailbox: Mailbox, pulse: Callable[[], object]
    ) -> None:
        self._load = load
        self._pulse = pulse
        self._mailbox = mailbox
        self._runner: Runner | None = None
        self._error: Exception | None = None
        self._is_done = threading.Event()

    def run(self) -> tuple[Runner, dict[bytes, Hello]] | None:
        """The runner, and the last Hello of each scheduler that came meanwhile.

        None if the process was asked to stop first. Raises what `load` raises.
        """
        threading.Thread(target=self._work, name="loading", daemon=True).start()
        hellos: dict[bytes, Hello] = {}
        next_beat = 0.0
        while not self._is_done.is_set():
            if self._mailbox.stopping:
                return None
            self._mailbox.block(next_beat - time.monotonic())
            for peer, message in self._mailbox.receive():
                if isinstance(message, Hello):
                    hellos.pop(peer, None)  # the last one to speak shall be the last in order
                    hellos[peer] = message
                    next_beat = 0.0
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_S
                self._pulse()  # a large model takes longer than any step; that is no hang
                for peer in hellos:
                    self._mailbox.send(peer, Beat(0, 0))
        if self._error is not None:
            raise self._error
        assert self._runner is not None
        return self._runner, hellos

    def _work(self) -> None:
        try:
            self._runner = self._load()
        except Exception as error:  # noqa: BLE001 - raised again in `run`
            self._error = error
        self._is_done.set()
        self._mailbox.wake()
