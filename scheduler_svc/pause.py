"""How the loop waits: it watches the result word while that pays, then it blocks.

Spinning is bounded in time, and for machines with CPUs to spare: the executor has one of its own to
do the work that is waited for.
"""

import math
import os
import time

import zmq

from scheduler_svc.executor_link import ExecutorLink

IN_FLIGHT_WAIT_S = 0.2
"""Longest block while a step is in flight: the answer to a doorbell that was lost, and how late a
stall is seen."""
SPIN_S = 0.02
SPIN_CPUS_MIN = 4


class Pause:
    """Between two turns of the loop."""

    def __init__(self, executor: ExecutorLink, frontends: "zmq.Socket[bytes]") -> None:
        self._executor = executor
        self._frontends = frontends
        self._poller = zmq.Poller()
        for socket in (executor.socket, executor.monitor, frontends):
            self._poller.register(socket, zmq.POLLIN)
        self._spins = len(os.sched_getaffinity(0)) >= SPIN_CPUS_MIN

    def wait(self, oldest_step: int, timeout_s: float) -> None:
        """Returns when something may have happened, or the time is over.

        `oldest_step` is the oldest in flight; 0: none is.
        """
        if oldest_step:
            if self._spins and self._spin(oldest_step):
                return
            timeout_s = min(timeout_s, IN_FLIGHT_WAIT_S)
            self._executor.set_waiting(True)
            if self._executor.is_complete(oldest_step):
                timeout_s = 0.0
        self._poller.poll(math.ceil(timeout_s * 1000))
        self._executor.set_waiting(False)

    def _spin(self, step: int) -> bool:
        """Watches the result word for a bounded time; whether it is worth a turn of the loop."""
        deadline = time.monotonic() + SPIN_S
        while time.monotonic() < deadline:
            for _ in range(100):
                if self._executor.is_complete(step):
                    return True
                os.sched_yield()
            if self._frontends.poll(0) or self._executor.socket.poll(0):
                return True
        return False
