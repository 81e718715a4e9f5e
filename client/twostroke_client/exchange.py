"""One request and its answer, without any I/O; the sync and the async stream are shells around it.

    shell                            Exchange
      attempt: read until begun  ──►   (re)starts the call, forgets a failed attempt
      read one message           ──►   take(message): checks it, queues the piece
      a read failed              ──►   can_resume(error): whether an attempt may go on with it
      hand out a piece           ◄──   pieces
      close, or any failure      ──►   close(): cancels the call, nothing follows

Rules of an answer: the first message of a stream carries the prompt info and only the last one of
the answer the finish; `first_index` continues the count of tokens, so that none is missing or there
twice; a stream that ends without a finish was cut off. An answer may come in several streams: each
but the first is asked for with the resume token of the first and the token ids that have come.
"""

import dataclasses
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from twostroke.v1 import generation_pb2 as pb
from twostroke_client.errors import (
    Cancelled,
    Draining,
    ProtocolError,
    Unavailable,
    Unreachable,
    typed_errors,
)
from twostroke_client.retries import Deadline
from twostroke_client.values import Completion, Delta, delta_from, resuming

RESUME_HEADER = "x-resume-token"


class Cancellable(Protocol):
    def cancel(self) -> bool: ...


C = TypeVar("C", bound=Cancellable)
Start = Callable[[pb.GenerateRequest, float | None], C]
"""Starts a call, with the seconds that are left for it."""


class Exchange(Generic[C]):
    """State of one answer over all attempts to get it. `C` is the gRPC call, sync or async."""

    def __init__(self, request: pb.GenerateRequest, start: Start[C], deadline: Deadline) -> None:
        self._request = request
        self._start = start
        self._deadline = deadline
        self._failed = False
        self._rules = _AnswerRules()
        self._clock = _Clock()
        self._token = ""
        self.call = start(request, deadline.left_s())
        self.pieces: deque[Delta] = deque()
        """Read and not handed out yet."""
        self.begun = False
        """Output has arrived: to send the request anew would repeat it."""
        self.over = False

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """One try to begin the answer or to go on with it; a new call if an earlier one failed."""
        if self._failed:
            self._start_again()
        try:
            yield
        except Unavailable:
            self._failed = True
            raise

    def _start_again(self) -> None:
        request = self._request
        if self.begun:
            request = resuming(request, self._token, self._rules.token_ids)
            self._rules.begin_stream()
            self._clock.begin_stream()
        else:
            self._rules = _AnswerRules()
            self.pieces.clear()
        self.call = self._start(request, self._deadline.left_s())
        self._failed = False

    def can_resume(self, error: Unavailable) -> bool:
        """Whether the next attempt can go on where this error of a read left off.

        It can where the front end has gone. Of a process that was lost behind it, a server tells
        only when it has waited for long already.
        """
        self._failed = True
        return bool(self._token) and isinstance(error, Unreachable | Draining)

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """A reader that fails for whatever reason, cancellation too, ends the exchange."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around a read of the call: what it raises is an error of ours.

        Only of an answer that has its finish it is none: what broke was the stream's own end.
        """
        try:
            with typed_errors():
                yield
        except Unavailable as error:
            if self.over:  # closed by another thread or task, so it is the reader who is not told
                raise Cancelled("the stream was closed while it was read") from error
            if not self._rules.has_finish:
                raise

    def take(self, message: pb.GenerateResponse | None) -> None:
        """What was read; None is the end of the stream with status OK. Raises ProtocolError."""
        if message is None:
            self._rules.check_end()
            self.over = True
            return
        piece = delta_from(message)
        self._rules.check(piece)
        self.pieces.append(self._clock.seen(piece))
        self.begun = self.begun or bool(piece.token_ids or piece.text or piece.finish)

    def take_headers(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """The initial metadata of the stream that has begun."""
        self._token = str(dict(metadata).get(RESUME_HEADER, ""))

    def close(self) -> None:
        """Cancels the call, which does nothing to one that has ended, and drops unread pieces."""
        self.over = True
        self.pieces.clear()
        self.call.cancel()


class _AnswerRules:
    def __init__(self) -> None:
        self.token_ids = array("I")
        """Of all streams."""
        self._has_prompt = False
        self.has_finish = False

    def begin_stream(self) -> None:
        self._has_prompt = False

    def check(self, piece: Delta) -> None:
        if self.has_finish:
            raise ProtocolError("the server went on after it had finished the answer")
        if self._has_prompt is (piece.prompt is not None):
            raise ProtocolError("the prompt info must come with the first message, and only there")
        count = len(self.token_ids)
        if piece.first_index != count:
            raise ProtocolError(f"expected token {count}, the server sent {piece.first_index}")
        if len(piece.logprobs) not in (0, len(piece.token_ids)):
            raise ProtocolError(
                f"{len(piece.logprobs)} tokens of {len(piece.token_ids)} have log-probabilities"
            )
        self.token_ids.extend(piece.token_ids)
        self._has_prompt = True
        self.has_finish = piece.finish is not None

    def check_end(self) -> None:
        if not self.has_finish:
            count = len(self.token_ids)
            raise ProtocolError(f"the stream ended after {count} tokens without a finish")


class _Clock:
    """Makes one answer of several streams: each has its own prompt info and durations."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._first_at = 0.0
        self._is_first_stream = True

    def begin_stream(self) -> None:
        self._is_first_stream = False

    def seen(self, piece: Delta) -> Delta:
        self._first_at = self._first_at or time.monotonic()
        if self._is_first_stream:
            return piece
        finish = piece.finish
        if finish is not None:
            finish = dataclasses.replace(
                finish,
                first_token_ms=(self._first_at - self._started_at) * 1e3,
                total_ms=(time.monotonic() - self._started_at) * 1e3,
            )
        return dataclasses.replace(piece, prompt=None, finish=finish)


def whole(pieces: list[Delta]) -> Completion:
    """The answer of which these are all the pieces."""
    prompt, finish = pieces[0].prompt, pieces[-1].finish
    assert prompt is not None, "checked when the piece came"
    assert finish is not None, "checked when the stream ended"
    return Completion(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        prompt=prompt,
        finish=finish,
        logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
    )
