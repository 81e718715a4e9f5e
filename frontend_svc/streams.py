"""Live requests: what was submitted, what came back, and what waits to be sent to the client.

    scheduler ──► LiveRequest.commit ──► committed ids, text ──► LiveRequest.take ──► gRPC handler
                                            (coalescing)

Rules of this file: tokens arrive gapless; whatever has come since the last `take` goes out in one
message, so that a slower reader gets fewer and larger messages, and nobody waits for anybody; a
request ends once, here and at the scheduler, and whatever comes after the end is ignored; when its
scheduler has gone, it is handed to the next one with what it has.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import msgspec
import structlog

from frontend_svc import errors
from frontend_svc.errors import Failure
from frontend_svc.text_stream import TextStream
from svc_wire.frontend_link import Finished, Outputs, Rejected, Submit
from svc_wire.ids import FinishReason

ACCOUNT_WAIT_S = 0.25
"""After a stop string: how long the end waits for the scheduler's account of the request."""

log = structlog.get_logger(service="frontend")

Logprobs = Sequence[tuple[int, float]]
"""(id, log-probability) of a token itself, then of the most likely ones."""

SendAbort = Callable[[int, FinishReason], None]


@dataclass(frozen=True, slots=True)
class Ending:
    """A good end."""

    matched: str | None
    """The stop string, if one ended it."""
    finished: Finished | None
    """The scheduler's account; None if it did not come in time after a stop string."""


class Piece(NamedTuple):
    """What goes into one message."""

    first_index: int
    token_ids: list[int]
    text: str
    ending: Ending | None
    logprobs: Sequence[Logprobs] = ()
    """Of each new token, if the request asked."""


class LiveRequest:
    """One request from its submission to its end. Used on the event loop only.

    `submit` and `committed` are its journal: with them it is submitted again when a scheduler has
    gone. The text, its held-back part and the stop strings' state are here anyway.
    """

    def __init__(
        self,
        submit: Submit,
        text: TextStream | None,
        *,
        wants_text: bool,
        wants_token_ids: bool,
        buffer_tokens: int,
    ) -> None:
        """`text` is needed if text is wanted or stop strings are given.

        Of an answer that is resumed, `submit` has the output and `text` has been through it; the
        client has both.
        """
        assert text is not None or not wants_text
        self.submit = submit
        self.committed = array("i", submit.output)
        """Output token ids, as the scheduler committed them; up to the stop string's last."""
        self._text = text
        self._wants_text = wants_text
        self._wants_token_ids = wants_token_ids
        self._wants_tokens = wants_token_ids or submit.logprobs is not None
        self._buffer_tokens = buffer_tokens
        self._taken = len(self.committed)  # tokens that were in pieces
        self._unsent_text = ""
        self._unsent_logprobs: list[Logprobs] = []  # of the tokens since; empty if not asked for
        self._takes_tokens = True  # until a stop string, an end or a failure
        self._matched = text.matched if text is not None else None
        self._ending: Ending | None = None
        self._failure: Failure | None = None
        self._wake = asyncio.Event()
        self._reader = asyncio.current_task()
        self._send_abort: SendAbort | None = None
        if self._matched is not None:
            self._end(None)  # all but the end had come

    @property
    def key(self) -> int:
        return self.submit.key

    @property
    def new_tokens(self) -> int:
        """How many it has committed itself: without those that its client brought."""
        return len(self.committed) - len(self.submit.output) // self.committed.itemsize

    @property
    def is_over(self) -> bool:
        return self._ending is not None or self._failure is not None

    # -- from the scheduler ------------------------------------------------------------------------

    def submitted(self, send_abort: SendAbort) -> None:
        """The scheduler has it from now on, until it ends the key or is told to abort it."""
        self._send_abort = send_abort

    def commit(self, index: int, token_id: int, logprobs: Logprobs = ()) -> None:
        if not self._takes_tokens:
            return  # late: the scheduler has not yet seen our abort
        if index != len(self.committed) or token_id < 0:
            self._break(f"token {index}, {token_id}, came after {len(self.committed)} tokens")
            return
        asked = self.submit.logprobs
        if len(logprobs) != (0 if asked is None else 1 + asked):
            self._break(f"token {index} has {len(logprobs)} log-probabilities")
            return
        self.committed.append(token_id)
        if logprobs:
            self._unsent_logprobs.append(logprobs)
        if self._text is not None:
            self._add_text(self._text.push(token_id))
            if self._matched is not None:
                self._wait_for_account()
        if self._unsent_text or self._wants_tokens:
            self._wake.set()
            if len(self.committed) - self._taken > self._buffer_tokens:
                self._overflow()

    def finish(self, finished: Finished) -> None:
        self._send_abort = None
        if self.is_over:
            return
        if self._matched is None:
            if finished.reason not in (FinishReason.STOP_TOKEN, FinishReason.LENGTH):
                self.fail(errors.from_finished(finished))
                return
            if finished.output_tokens != len(self.committed):
                self._break(f"{finished.output_tokens} tokens ended after {len(self.committed)}")
                return
            if self._text is not None:
                self._add_text(self._text.finish())
        self._end(finished)

    def fail(self, failure: Failure) -> None:
        """Ends it badly; what came before is still delivered."""
        if self._matched is not None:
            self._end(None)  # the answer is complete
        if not self.is_over:
            self._failure = failure
            self._takes_tokens = False
            self._wake.set()

    def leave(self, failure: Failure) -> None:
        """As `fail`; but if its client can resume it, the scheduler goes on with it."""
        if self._wants_token_ids:
            self._send_abort = None
        self.fail(failure)

    def rejected(self, failure: Failure) -> None:
        """The scheduler does not take it."""
        self._send_abort = None
        self.fail(failure)

    def detach(self) -> None:
        """The scheduler that had it is gone. What the client has not got yet stays as it is."""
        self._send_abort = None
        if self._matched is not None:
            self._end(None)  # the answer is complete; only the account is lost

    @property
    def is_orphan(self) -> bool:
        """It goes on, but no scheduler works on it."""
        return self._send_abort is None and not self.is_over

    @property
    def resumption(self) -> Submit:
        """What brings it to another scheduler."""
        return msgspec.structs.replace(
            self.submit, output=self.committed.tobytes(), was_accepted=True
        )

    # -- to the client -----------------------------------------------------------------------------

    async def take(self) -> Piece:
        """All that has come since the last call; waits for something. Raises Failure.

        After the piece with the ending there is none.
        """
        while not (has_output := self._has_output) and not self.is_over:
            self._wake.clear()
            await self._wake.wait()
        if self._failure is not None and not has_output:
            raise self._failure
        first, self._taken = self._taken, len(self.committed)
        text, self._unsent_text = self._unsent_text, ""
        logprobs, self._unsent_logprobs = tuple(self._unsent_logprobs), []
        token_ids = self.committed[first:].tolist() if self._wants_token_ids else []
        return Piece(first, token_ids, text, self._ending, logprobs)

    def abort(self, reason: FinishReason) -> None:
        """Tells the scheduler that nobody waits for this request, unless it knows."""
        if self._send_abort is not None:
            send_abort, self._send_abort = self._send_abort, None
            send_abort(self.key, reason)

    @property
    def overflow(self) -> Failure | None:
        """Set if the reader was cancelled because it was too slow."""
        failure = self._failure
        return failure if failure is not None and failure.reason == "SLOW_READER" else None

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _has_output(self) -> bool:
        return bool(self._unsent_text) or (self._wants_tokens and len(self.committed) > self._taken)

    def _add_text(self, text: str) -> None:
        assert self._text is not None
        if self._wants_text:
            self._unsent_text += text
        self._matched = self._text.matched

    def _end(self, finished: Finished | None) -> None:
        if not self.is_over:
            self._ending = Ending(self._matched, finished)
            self._takes_tokens = False
            self._wake.set()

    def _wait_for_account(self) -> None:
        """The text is complete and on its way; only the end waits, and not for long."""
        self._takes_tokens = False
        self.abort(FinishReason.STOP_STRING)
        asyncio.get_running_loop().call_later(ACCOUNT_WAIT_S, self._end, None)

    def _overflow(self) -> None:
        """The reader may be stuck in a write: it is cancelled, and then finds this failure."""
        assert self._reader is not None
        self.fail(errors.slow_reader(len(self.committed) - self._taken))
        self.abort(FinishReason.ABORT)
        self._reader.cancel()

    def _break(self, what: str) -> None:
        """The scheduler broke its promise; this stream cannot be right any more."""
        reference = f"key-{self.key}"
        log.error("the scheduler lost or repeated tokens", what=what, reference=reference)
        self.fail(errors.internal(reference))


class LiveRequests:
    """The table of live requests, by key."""

    def __init__(self) -> None:
        self._by_key: dict[int, LiveRequest] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, live: LiveRequest) -> None:
        assert live.key not in self._by_key, "keys are never reused"
        self._by_key[live.key] = live
        self._empty.clear()

    def remove(self, live: LiveRequest) -> None:
        del self._by_key[live.key]
        if not self._by_key:
            self._empty.set()

    def outputs(self, outputs: Outputs) -> None:
        """Hands each token, then each end, to its request. Those of removed requests are late."""
        keys = memoryview(outputs.keys).cast("Q")
        indices = memoryview(outputs.indices).cast("i")
        tokens = memoryview(outputs.tokens).cast("i")
        for key, index, token_id, logprobs in zip(
            keys, indices, tokens, _logprobs_by_token(outputs), strict=True
        ):
            if (live := self._by_key.get(key)) is not None:
                live.commit(index, token_id, logprobs)
        for finished in outputs.finished:
            if (live := self._by_key.get(finished.key)) is not None:
                live.finish(finished)

    def rejected(self, rejected: Rejected) -> None:
        if (live := self._by_key.get(rejected.key)) is not None:
            live.rejected(errors.from_rejected(rejected))

    def fail_all(self, failure: Failure) -> None:
        for live in self._by_key.values():
            live.fail(failure)

    def leave_all(self, failure: Failure) -> None:
        for live in self._by_key.values():
            live.leave(failure)

    def detach_all(self) -> None:
        for live in self._by_key.values():
            live.detach()

    def orphans(self) -> list[LiveRequest]:
        """Those that wait for a scheduler, in the order in which they came."""
        return [live for live in self._by_key.values() if live.is_orphan]

    async def wait_empty(self) -> None:
        await self._empty.wait()


def _logprobs_by_token(outputs: Outputs) -> Sequence[Logprobs]:
    if not outputs.logprob_counts:
        return [()] * len(memoryview(outputs.tokens).cast("i"))
    ids, values = memoryview(outputs.logprob_ids), memoryview(outputs.logprobs)
    pairs = zip(ids.cast("i"), values.cast("f"), strict=True)
    return [list(islice(pairs, count)) for count in outputs.logprob_counts]
