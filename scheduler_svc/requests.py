"""The front ends' requests: into the core as sequences, back as tokens and endings."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import structlog

from scheduler_svc.core import Ending, Int32s, Rejection, Request, Scheduler, StepOutput
from scheduler_svc.frontends import Frontend, Frontends
from scheduler_svc.meter import Meter
from scheduler_svc.orphans import Orphans
from svc_wire.frontend_link import Abort, Finished, Rejected, Submit
from svc_wire.ids import FinishReason, RejectReason, SeqId

log = structlog.get_logger(service="scheduler")


@dataclass(slots=True, eq=False)
class _Progress:
    """When a request passed its stations."""

    stream: bytes
    submitted_ns: int
    first_row_ns: int = 0
    busy_at_first_row_ns: int = 0


class Requests:
    """Those that were accepted and have not ended."""

    def __init__(
        self, core: Scheduler, frontends: Frontends, meter: Meter, resume_grace_s: float
    ) -> None:
        self._core = core
        self._frontends = frontends
        self._meter = meter
        self._progress: dict[SeqId, _Progress] = {}
        self._by_stream: dict[bytes, SeqId] = {}
        """Those whose stream has a name."""
        self._orphans = Orphans(resume_grace_s)
        self._undelivered: list[StepOutput] = []

    def __len__(self) -> int:
        return len(self._progress)

    # -- in ----------------------------------------------------------------------------------------

    def submit(self, frontend: Frontend, submit: Submit, *, is_draining: bool) -> None:
        """Accepts it, hands it over if its stream is here, or tells the front end why not."""
        try:
            if submit.key in frontend.sequences:
                raise Rejection(RejectReason.INVALID, f"the key {submit.key} is in use")
            if (seq_id := self._by_stream.get(submit.stream)) is not None:
                if self._hand_over(seq_id, frontend, submit):
                    return
                # It cannot be gone on with; its client is here, so nobody waits for it any more.
                self._abort(seq_id, FinishReason.ABORT)
            elif is_draining and not submit.was_accepted:
                raise Rejection(RejectReason.DRAINING, "the scheduler is shutting down")
            request = _request_of(submit, was_accepted=submit.was_accepted or seq_id is not None)
            self._add(frontend, submit, self._core.add(request, now_s=time.monotonic()))
        except Rejection as rejection:
            message = Rejected(submit.key, rejection.reason, rejection.message)
            self._frontends.reject(frontend, message)

    def _add(self, frontend: Frontend, submit: Submit, seq_id: SeqId) -> None:
        self._frontends.accept(frontend, submit.key, seq_id)
        self._progress[seq_id] = _Progress(submit.stream, time.monotonic_ns())
        if submit.stream:
            self._by_stream[submit.stream] = seq_id

    def _hand_over(self, seq_id: SeqId, frontend: Frontend, submit: Submit) -> bool:
        """Gives a sequence to the front end whose client has come back, with the tokens since.

        False if it has ended, is not what the client has begun to read, or has gone on with
        something that cannot be told any more.
        """
        self.deliver()  # or what is under way to the old owner would come to the new one twice
        begun = np.concatenate([_ids(submit.prompt), _ids(submit.output)])
        since = self._core.continuation(seq_id, begun)
        if since is None or (len(since) and submit.logprobs is not None):
            return False  # nobody keeps log-probabilities, so those tokens must be sampled again
        self._orphans.remove(seq_id)
        self._frontends.accept(frontend, submit.key, seq_id)
        for index, token in enumerate(since.tolist(), len(_ids(submit.output))):
            self._frontends.add_token(seq_id, index, token)
        return True

    def abort(self, frontend: Frontend, abort: Abort) -> None:
        if (seq_id := frontend.sequences.get(abort.key)) is not None:
            self._abort(seq_id, abort.reason)

    # -- front ends come and go --------------------------------------------------------------------

    def orphan(self, now: float) -> None:
        """Notes whose front ends have gone, and aborts those for whom nobody has come."""
        # Some of them may have ended in the same turn.
        dropped = [seq_id for seq_id in self._frontends.take_dropped() if seq_id in self._progress]
        if dropped:
            log.info("requests without a front end", requests=len(dropped))
        self._orphans.add(dropped, now)
        for seq_id in self._orphans.overdue(now):
            self._abort(seq_id, FinishReason.ABORT)

    def abort_dropped(self) -> None:
        """Aborts those whose front ends have gone, just now or before."""
        for seq_id in [*self._frontends.take_dropped(), *self._orphans]:
            self._abort(seq_id, FinishReason.ABORT)

    def _abort(self, seq_id: SeqId, reason: FinishReason) -> None:
        if (ending := self._core.abort(seq_id, reason)) is not None:
            self.end([ending])

    # -- out ---------------------------------------------------------------------------------------

    def begin(self, first_rows: Iterable[SeqId]) -> None:
        """These have just got their first row."""
        now_ns = time.monotonic_ns()
        for seq_id in first_rows:
            progress = self._progress[seq_id]
            progress.first_row_ns = now_ns
            progress.busy_at_first_row_ns = self._meter.busy_ns

    def committed(self, outputs: Iterable[StepOutput]) -> None:
        """What steps brought; it goes out with `deliver`, when there is time."""
        self._undelivered += outputs

    def deliver(self) -> None:
        """Passes on what steps brought."""
        outputs, self._undelivered = self._undelivered, []
        for output in outputs:
            told = output.logprobs
            for seq_id, index, token, logprobs in zip(
                output.seq_ids.tolist(),
                output.indices.tolist(),
                output.tokens.tolist(),
                told.by_token() if told is not None else [()] * len(output.tokens),
                strict=True,
            ):
                self._frontends.add_token(seq_id, index, token, logprobs)
            self._tell_ends(output.endings)

    def end(self, endings: Iterable[Ending]) -> None:
        """Tells the front ends how sequences ended, after what steps brought them before."""
        self.deliver()
        self._tell_ends(endings)

    def _tell_ends(self, endings: Iterable[Ending]) -> None:
        for ending in endings:
            progress = self._progress.pop(ending.seq_id)
            self._by_stream.pop(progress.stream, None)
            self._orphans.remove(ending.seq_id)
            key = self._frontends.key_of(ending.seq_id)
            if key is not None:
                finished = self._finished(key, ending, progress)
                self._frontends.finish(ending.seq_id, finished)

    def _finished(self, key: int, ending: Ending, progress: _Progress) -> Finished:
        now_ns = time.monotonic_ns()
        first_ns, busy_share = now_ns, 0.0
        if progress.first_row_ns:
            first_ns, busy_ns = progress.first_row_ns, progress.busy_at_first_row_ns
            busy_share = self._meter.share_since(first_ns, busy_ns, now_ns)
        return Finished(
            key=key,
            reason=ending.reason,
            message=ending.message,
            prompt_tokens=ending.prompt_tokens,
            cached_tokens=ending.cached_tokens,
            output_tokens=ending.output_tokens,
            preemptions=ending.preemptions,
            queued_ns=first_ns - progress.submitted_ns,
            running_ns=now_ns - first_ns,
            busy_share=busy_share,
        )


def _ids(data: bytes) -> Int32s:
    return np.frombuffer(data, "<i4").astype(np.int32)


def _request_of(submit: Submit, *, was_accepted: bool) -> Request:
    return Request(
        prompt=_ids(submit.prompt),
        output=_ids(submit.output),
        was_accepted=was_accepted,
        max_tokens=submit.max_tokens,
        min_tokens=submit.min_tokens,
        stop_ids=submit.stop_ids,
        sampling=submit.sampling,
        priority=submit.priority,
        tenant=submit.tenant,
        expected_tokens=submit.expected_tokens,
        logprobs=submit.logprobs,
        deadline_s=submit.deadline_ns / 1e9 if submit.deadline_ns else math.inf,
    )
