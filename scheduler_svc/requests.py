"""The front ends' requests: into the core as sequences, back as tokens and endings."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from scheduler_svc.core import Ending, Rejection, Request, Scheduler, StepOutput
from scheduler_svc.frontends import Frontend, Frontends
from scheduler_svc.meter import BusyMeter
from svc_wire.frontend_link import Abort, Finished, Rejected, Submit
from svc_wire.ids import FinishReason, RejectReason, SeqId


@dataclass(slots=True, eq=False)
class _Progress:
    """When a request passed its stations."""

    submitted_ns: int
    first_row_ns: int = 0
    busy_at_first_row_ns: int = 0


class Requests:
    """Those that were accepted and have not ended."""

    def __init__(self, core: Scheduler, frontends: Frontends, meter: BusyMeter) -> None:
        self._core = core
        self._frontends = frontends
        self._meter = meter
        self._progress: dict[SeqId, _Progress] = {}

    def __len__(self) -> int:
        return len(self._progress)

    # -- in ----------------------------------------------------------------------------------------

    def submit(self, frontend: Frontend, submit: Submit, *, is_draining: bool) -> None:
        """Accepts it, or tells the front end why not."""
        try:
            if is_draining and not submit.was_accepted:
                raise Rejection(RejectReason.DRAINING, "the scheduler is shutting down")
            if submit.key in frontend.sequences:
                raise Rejection(RejectReason.INVALID, f"the key {submit.key} is in use")
            seq_id = self._core.add(_request_of(submit), now_s=time.monotonic())
        except Rejection as rejection:
            message = Rejected(submit.key, rejection.reason, rejection.message)
            self._frontends.reject(frontend, message)
            return
        self._frontends.accept(frontend, submit.key, seq_id)
        self._progress[seq_id] = _Progress(time.monotonic_ns())

    def abort(self, frontend: Frontend, abort: Abort) -> None:
        if (seq_id := frontend.sequences.get(abort.key)) is not None:
            self._abort(seq_id, abort.reason)

    def abort_dropped(self) -> None:
        """Ends the sequences whose front end is gone."""
        for seq_id in self._frontends.dropped:
            self._abort(seq_id, FinishReason.ABORT)
        self._frontends.dropped.clear()

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

    def deliver(self, output: StepOutput) -> None:
        """Passes on what a step brought."""
        for seq_id, index, token in zip(
            output.seq_ids.tolist(), output.indices.tolist(), output.tokens.tolist(), strict=True
        ):
            self._frontends.add_token(seq_id, index, token)
        self.end(output.endings)

    def end(self, endings: Iterable[Ending]) -> None:
        """Tells the front ends how sequences ended."""
        for ending in endings:
            progress = self._progress.pop(ending.seq_id)
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


def _request_of(submit: Submit) -> Request:
    return Request(
        prompt=np.frombuffer(submit.prompt, "<i4").astype(np.int32),
        output=np.frombuffer(submit.output, "<i4").astype(np.int32),
        was_accepted=submit.was_accepted,
        max_tokens=submit.max_tokens,
        min_tokens=submit.min_tokens,
        stop_ids=submit.stop_ids,
        sampling=submit.sampling,
        priority=submit.priority,
        tenant=submit.tenant,
        expected_tokens=submit.expected_tokens,
        deadline_s=submit.deadline_ns / 1e9 if submit.deadline_ns else math.inf,
    )
