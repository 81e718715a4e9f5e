"""Scheduler, model and live requests together: what the services talk to, and whether we serve.

One owner for the question "can a request be served now, and if not, why": `refusal`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime
from pathlib import Path

import structlog

from frontend_svc import errors
from frontend_svc.errors import Failure
from frontend_svc.scheduler_link import LinkDown, SchedulerLink
from frontend_svc.served_model import ServedModel, load_model
from frontend_svc.streams import LiveRequest, LiveRequests
from svc_wire.frontend_link import Abort, Attached, Outputs, Ping, Rejected, Status
from svc_wire.ids import FinishReason

STATUS_WAIT_S = 1.0

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
        executor_wait_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self.live = LiveRequests()
        self.link = SchedulerLink(endpoint, name, self)
        self.is_draining = False
        self.changed = asyncio.Event()
        """Set whenever the answer of `refusal` may have changed."""
        self._workers = workers
        self._tokenizer_folder = tokenizer_folder
        self._executor_wait_s = executor_wait_s
        self._now = now
        self._attached: Attached | None = None
        self._model: ServedModel | None = None
        self._status: Status | None = None
        self._status_waiters: list[asyncio.Future[Status]] = []
        self._token_at = 0.0
        self._outage: asyncio.TimerHandle | None = None

    # -- for the services --------------------------------------------------------------------------

    def refusal(self) -> Failure | None:
        """Why no request is taken now; None if they are."""
        if self.is_draining:
            return errors.draining()
        if not self.link.is_up:
            return errors.not_ready("waiting for the scheduler")
        if self._status is None:
            return errors.not_ready("waiting for the scheduler's status")
        if not self._status.ready:
            return errors.not_ready(self._status.reason)
        return None

    @property
    def model(self) -> ServedModel | None:
        """What is served; stays known while the scheduler is away."""
        return self._model

    def submit(self, live: LiveRequest) -> None:
        """Hands a request to the scheduler. `release` must follow. Raises Failure."""
        if refusal := self.refusal():
            raise refusal
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
        if attached != self._attached:
            self.live.fail_all(errors.executor_lost("another model is served now"))
            self._model = await asyncio.get_running_loop().run_in_executor(
                self._workers, load_model, attached, self._tokenizer_folder, self._now
            )
            self._attached = attached
        self.changed.set()

    def status(self, status: Status) -> None:
        self._status = status
        waiters, self._status_waiters = self._status_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(status)
        if status.ready and self._outage is not None:
            self._outage.cancel()
            self._outage = None
        elif not status.ready and self._outage is None:
            self._expect_executor(self._executor_wait_s)
        self.changed.set()

    def outputs(self, outputs: Outputs) -> None:
        if outputs.tokens:
            self._token_at = asyncio.get_running_loop().time()
        self.live.outputs(outputs)

    def rejected(self, rejected: Rejected) -> None:
        self.live.rejected(rejected)

    def lost(self, reason: str) -> None:
        self._status = None
        if self._outage is not None:
            self._outage.cancel()
            self._outage = None
        self.live.lost(errors.scheduler_lost(reason))
        self.changed.set()

    # -- an executor that is away ------------------------------------------------------------------

    def _expect_executor(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._outage = loop.call_later(wait_s, self._check_executor)

    def _check_executor(self) -> None:
        """The scheduler has not been ready for a while: streams end, unless tokens still come.

        (A scheduler that shuts down is not ready either, but finishes what it has.)
        """
        assert self._status is not None
        silence_s = asyncio.get_running_loop().time() - self._token_at
        if silence_s < self._executor_wait_s:
            self._expect_executor(self._executor_wait_s - silence_s)
        else:
            self.live.fail_all(errors.executor_lost(self._status.reason))
            self._expect_executor(self._executor_wait_s)
