"""The executor's loop: it feeds the runner, publishes results and answers schedulers.

The device comes first: when a result is there, the next published plan is submitted before the
result is handed over. While steps are in flight the loop spins on the plan word (bounded, and only
on machines with CPUs to spare), then it blocks in the runner; with nothing in flight it blocks on
the socket, and the scheduler rings the doorbell. Idle, it wakes once a second.

Its pulse (see svc_shell/pulse.py) follows the steps: while some are in flight and none ends, there
is none, whatever else this loop does.
"""

import os
import time
from collections.abc import Callable

import structlog

from executor_svc.mailbox import Mailbox
from executor_svc.runner import Runner, RunnerError
from executor_svc.session import VOID, Session
from svc_wire.errors import FrameError
from svc_wire.executor_link import (
    PROTOCOL_VERSION,
    Beat,
    Hello,
    Refused,
    StepDone,
    StepFailed,
    Welcome,
)
from svc_wire.ring import ExecutorRing

BEAT_S = 1.0
LOOK_S = 0.005
"""While steps are in flight, messages are looked for so often."""
SPIN_S = 0.02
"""So long after the last progress the loop spins, on machines with CPUs to spare: longer than a
decode step, so that a plan is seen when it comes and not when the step before it has ended."""
SPIN_CPUS_MIN = 4
RUNNER_WAIT_S = 0.001
"""Longest block in the runner; plans that come meanwhile are seen so late."""

log = structlog.get_logger(service="executor")


class Service:
    """Serves one scheduler at a time, until the mailbox says stop."""

    def __init__(
        self, mailbox: Mailbox, runner: Runner, ring: ExecutorRing, pulse: Callable[[], object]
    ) -> None:
        self._mailbox = mailbox
        self._runner = runner
        self._ring = ring
        self._pulse = pulse
        self._completed_seen = 0
        self._session: Session | None = None
        self._kv = VOID
        """(epoch, step) whose state KV memory is in, as far as earlier sessions go."""
        self._epoch = 0
        self._spins = len(os.sched_getaffinity(0)) >= SPIN_CPUS_MIN
        self._next_beat = self._next_look = self._progress_at = 0.0

    def run(self, hellos: dict[bytes, Hello]) -> None:
        """Answers the Hellos that came while the runner was made, and goes on from there."""
        for peer, hello in hellos.items():
            self._on_hello(peer, hello)
        while not self._mailbox.stopping:
            now = time.monotonic()
            if now >= self._next_look:
                self._next_look = now + LOOK_S
                self._look(now)
            try:
                if self._advance(timeout_s=0.0):
                    self._progress_at = now
                elif self._spins and now < self._progress_at + SPIN_S:
                    os.sched_yield()
                else:
                    self._block()
            except (RunnerError, FrameError) as error:
                self._fail(error)

    # -- steps -------------------------------------------------------------------------------------

    def _advance(self, timeout_s: float) -> bool:
        """Takes plans in and hands out one result; whether there was either."""
        session = self._session
        if session is None:
            return False
        worked = session.submit_published()
        if (result := session.collect(timeout_s)) is None:
            return worked
        session.submit_published()
        if session.publish(result):
            self._mailbox.send(session.peer, StepDone(result.epoch, result.step))
        return True

    def _block(self) -> None:
        """Returns when something may have happened; never later than the next beat."""
        if self._session is not None and self._session.in_flight:
            if self._advance(RUNNER_WAIT_S):
                self._progress_at = time.monotonic()
            return
        self._ring.set_waiting(True)
        if self._session is None or not self._session.has_plan:
            self._mailbox.block(self._next_beat - time.monotonic())
        self._ring.set_waiting(False)
        self._next_look = 0.0

    def _fail(self, error: Exception) -> None:
        """The epoch is over; the scheduler says Hello again."""
        assert self._session is not None
        session, self._session = self._session, None
        self._kv = VOID
        failed = session.completed + 1
        log.error("step failed", epoch=session.epoch, step=failed, error=str(error))
        self._mailbox.send(session.peer, StepFailed(session.epoch, failed, str(error)))

    # -- messages ----------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        for peer, message in self._mailbox.receive():
            if isinstance(message, Hello):  # doorbells and Beats have done their work by waking
                self._on_hello(peer, message)
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            self._beat()

    def _beat(self) -> None:
        session = self._session
        if session is None:
            self._pulse()
            return
        self._mailbox.send(session.peer, Beat(session.epoch, session.completed))
        if not session.in_flight or session.completed != self._completed_seen:
            self._completed_seen = session.completed
            self._pulse()

    def _on_hello(self, peer: bytes, hello: Hello) -> None:
        """Begins a new epoch, which fences whoever was served before."""
        if hello.protocol != PROTOCOL_VERSION:
            reason = f"this executor speaks protocol {PROTOCOL_VERSION}, not {hello.protocol}"
            log.warning("refused a scheduler", reason=reason)
            self._mailbox.send(peer, Refused(reason))
            return
        if self._session is not None:
            self._kv = self._session.kv_after(self._kv)
        self._epoch = max(self._epoch, hello.epoch_seen) + 1
        self._runner.begin(self._epoch)
        self._session = Session(peer, self._epoch, self._runner, self._ring)
        welcome = Welcome(
            protocol=PROTOCOL_VERSION,
            epoch=self._epoch,
            ring_path=str(self._ring.path),
            capacity=self._runner.capacity,
            model=self._runner.model,
            kv_epoch=self._kv[0],
            kv_step=self._kv[1],
        )
        self._mailbox.send(peer, welcome)
        log.info("serving a scheduler", epoch=self._epoch)
