"""Scheduler, model and live requests together: what the services talk to, and whether we serve.

One owner for the question "can a request be served now, and if not, why": `reason`.

An outage is the time in which no scheduler is attached, or its executor is away. Live requests
outlive it: the next scheduler gets them with their output so far (see streams.py), or the executor
comes back and the scheduler goes on by itself; to the clients it is a pause. It has a bound.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import structlog

from frontend_svc import errors
from frontend_svc.errors import Failure
from frontend_svc.scheduler_link import LinkDown, SchedulerLink
from frontend_svc.served_model import ServedModel, load_model, model_mark
from frontend_svc.streams import LiveRequest, LiveRequests
from svc_wire.frontend_link import (
    Abort,
    AskPolicy,
    Attached,
    Outputs,
    Ping,
    PolicyInForce,
    Rejected,
    Status,
)
from svc_wire.ids import FinishReason

STATUS_WAIT_S = 1.0
POLICY_WAIT_S = 5.0

log = structlog.get_logger(service="frontend")


class Backend:
    """Lives on the event loop. Is told by the link (LinkEvents) what the scheduler says."""

    def __init__(
        self,
        endpoint: str,
        name: str,
        workers: Executor,
        *,
        tokenizer_folder: Path | None,
        outage_timeout_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self.live = LiveRequests()
        self.link = SchedulerLink(endpoint, name, self)
        self.is_draining = False
        self.changed = asyncio.Event()
        """Set whenever `reason` may have changed."""
        self._workers = workers
        self._tokenizer_folder = tokenizer_folder
        self._outage_timeout_s = outage_timeout_s
        self._now = now
        self._model: ServedModel | None = None
        self._status: Status | None = None
        self._status_at = 0.0
        self._status_waiters: list[asyncio.Future[Status]] = []
        self._policy_waiters: dict[int, asyncio.Future[PolicyInForce]] = {}
        self._tickets = itertools.count(1)
        self._token_at = 0.0
        self._outage: asyncio.TimerHandle | None = None
        self._outage_reason = ""

    # -- for the services --------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """Why no request is taken now; empty if they are."""
        if self.is_draining:
            return str(errors.draining())
        if not self.link.is_up:
            # While attaching, a scheduler already says what it waits for.
            status = self._status
            told = status.reason if status is not None else ""
            return told or "waiting for the scheduler"
        if (status := self._status) is None:
            return "waiting for the scheduler's status"
        return "" if status.ready else status.reason

    def refusal(self) -> Failure | None:
        """What a request that comes now is told; None if it is taken."""
        if self.is_draining:
            return errors.draining()
        return errors.not_ready(self.reason) if self.reason else None

    async def wait_ready(self) -> None:
        """Returns when requests are taken. Nobody else may wait for `changed` meanwhile."""
        while self.reason:
            self.changed.clear()
            await self.changed.wait()

    @property
    def model(self) -> ServedModel | None:
        """What is served; stays known while the scheduler is away."""
        return self._model

    def submit(self, live: LiveRequest) -> None:
        """Hands a request to the scheduler, unless its answer is complete. `release` must follow.

        Raises Failure.
        """
        if refusal := self.refusal():
            raise refusal
        if live.is_over:
            self.live.add(live)
            return
        try:
            self.link.send(live.submit)
        except LinkDown as error:
            raise errors.scheduler_lost(str(error)) from error
        live.submitted(self._abort)
        self.live.add(live)

    def release(self, live: LiveRequest, reason: FinishReason) -> None:
        """Nobody waits for this request any more; `reason` is why, if it has not ended."""
        self.live.remove(live)
        live.abort(reason)

    def last_status(self, age_s_max: float) -> Status | None:
        """What the scheduler said last, once a second; None if it is gone, or silent for longer.

        This and `reason` may be asked in any thread: they read what they need once.
        """
        status = self._status
        return status if time.monotonic() - self._status_at <= age_s_max else None

    async def fresh_status(self) -> Status | None:
        """The scheduler's counters of this moment; None if it does not answer."""
        waiter: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        if not self.link.is_up:
            return None
        try:
            self.link.send(Ping())
            self._status_waiters.append(waiter)
            return await asyncio.wait_for(waiter, STATUS_WAIT_S)
        except (LinkDown, TimeoutError):
            return None

    async def ask_policy(self, name: str, options: Mapping[str, str]) -> PolicyInForce:
        """Puts the policy `name` in force, unless it is empty; what holds then. Raises Failure."""
        ticket = next(self._tickets)
        waiter: asyncio.Future[PolicyInForce] = asyncio.get_running_loop().create_future()
        if not self.link.is_up:
            raise errors.not_ready("waiting for the scheduler")
        self._policy_waiters[ticket] = waiter
        try:
            self.link.send(AskPolicy(ticket, name, dict(options)))
            return await asyncio.wait_for(waiter, POLICY_WAIT_S)
        except (LinkDown, TimeoutError) as error:
            raise errors.not_ready("the scheduler does not answer") from error
        finally:
            del self._policy_waiters[ticket]

    def drain(self) -> None:
        self.is_draining = True
        self.changed.set()

    def _abort(self, key: int, reason: FinishReason) -> None:
        try:
            self.link.send(Abort(key, reason))
        except LinkDown as error:
            # The scheduler takes nothing more, so it is about to be found lost, and us to detach.
            log.warning("cannot abort a request", key=key, error=str(error))

    # -- LinkEvents --------------------------------------------------------------------------------

    async def attached(self, attached: Attached) -> None:
        mark = model_mark(attached.model, attached.vocab_size)
        if self._model is not None and self._model.mark == mark:
            # Its memory may be another.
            self._model = replace(self._model, sequence_len_max=attached.sequence_len_max)
        else:
            self.live.fail_all(errors.executor_lost("another model is served now"))
            self._model = None  # what is served next is not known before its tokenizer is read
            self._model = await asyncio.get_running_loop().run_in_executor(
                self._workers, load_model, attached, self._tokenizer_folder, self._now
            )
        self._resume()
        self.changed.set()

    def status(self, status: Status) -> None:
        self._status, self._status_at = status, time.monotonic()
        waiters, self._status_waiters = self._status_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(status)
        if status.ready:
            self._end_outage()
        else:
            self._begin_outage(status.reason)
        self.changed.set()

    def outputs(self, outputs: Outputs) -> None:
        if outputs.tokens:
            self._token_at = asyncio.get_running_loop().time()
        self.live.outputs(outputs)

    def rejected(self, rejected: Rejected) -> None:
        self.live.rejected(rejected)

    def policy(self, policy: PolicyInForce) -> None:
        waiter = self._policy_waiters.get(policy.ticket)
        if waiter is not None and not waiter.done():
            waiter.set_result(policy)

    def lost(self, reason: str) -> None:
        self._status = None
        self.live.detach_all()
        self._begin_outage(reason)
        self.changed.set()

    # -- outages -----------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Hands the requests of a scheduler that is gone to this one."""
        if orphans := self.live.orphans():
            log.info("resuming requests", requests=len(orphans))
        for live in orphans:
            try:
                self.link.send(live.resumption)
            except LinkDown as error:
                live.rejected(errors.scheduler_lost(str(error)))
            else:
                live.submitted(self._abort)

    def _begin_outage(self, reason: str) -> None:
        self._outage_reason = reason
        if self._outage is None:
            self._check_outage_in(self._outage_timeout_s)

    def _end_outage(self) -> None:
        if self._outage is not None:
            self._outage.cancel()
            self._outage = None

    def _check_outage_in(self, wait_s: float) -> None:
        self._outage = asyncio.get_running_loop().call_later(wait_s, self._check_outage)

    def _check_outage(self) -> None:
        """Its time is up: streams end, unless tokens still come.

        (A scheduler that shuts down is not ready, but goes on with what it has.)
        """
        silence_s = asyncio.get_running_loop().time() - self._token_at
        if silence_s < self._outage_timeout_s:
            self._check_outage_in(self._outage_timeout_s - silence_s)
            return
        lost = errors.executor_lost if self.link.is_up else errors.scheduler_lost
        log.warning("the outage lasts too long", reason=self._outage_reason, streams=len(self.live))
        self.live.fail_all(lost(self._outage_reason))
