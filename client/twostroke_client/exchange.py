"""One request and its answer, without any I/O; the sync and the async stream are shells around it.

    shell                            Exchange
      attempt: read until begun  ──►   (re)starts the call, forgets a failed attempt
      read one message           ──►   take(message): checks it, queues the piece
      hand out a piece           ◄──   pieces
      close, or any failure      ──►   close(): cancels the call, nothing follows

Rules of an answer: the first message carries the prompt info and only the last one the finish;
`first_index` continues the count of tokens, so that none is missing or there twice; a stream that
ends without a finish was cut off.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from twostroke.v1 import generation_pb2 as pb
from twostroke_client.errors import ProtocolError, Unavailable
from twostroke_client.retries import Deadline
from twostroke_client.values import Completion, Delta, delta_from


class Cancellable(Protocol):
    def cancel(self) -> bool: ...


C = TypeVar("C", bound=Cancellable)


class Exchange(Generic[C]):
    """State of one answer over all attempts to get it. `C` is the gRPC call, sync or async."""

    def __init__(self, start: Callable[[float | None], C], deadline: Deadline) -> None:
        self._start = start
        self._deadline = deadline
        self._failed = False
        self._rules = _AnswerRules()
        self.call = start(deadline.left_s())
        self.pieces: deque[Delta] = deque()
        """Read and not handed out yet."""
        self.begun = False
        """Output has arrived: to send the request again would repeat it."""
        self.over = False

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """One try to begin the answer; a new call if an earlier one failed."""
        if self._failed:
            self.call = self._start(self._deadline.left_s())
            self._rules = _AnswerRules()
            self.pieces.clear()
        try:
            yield
        except Unavailable:
            self._failed = True
            raise

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """A reader that fails for whatever reason, cancellation too, ends the exchange."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def take(self, message: pb.GenerateResponse | None) -> None:
        """What was read; None is the end of the stream with status OK. Raises ProtocolError."""
        if message is None:
            self._rules.check_end()
            self.over = True
            return
        piece = delta_from(message)
        self._rules.check(piece)
        self.pieces.append(piece)
        self.begun = self.begun or bool(piece.token_ids or piece.text or piece.finish)

    def close(self) -> None:
        """Cancels the call, which does nothing to one that has ended, and drops unread pieces."""
        self.over = True
        self.pieces.clear()
        self.call.cancel()


class _AnswerRules:
    def __init__(self) -> None:
        self._count = 0
        self._has_prompt = False
        self._has_finish = False

    def check(self, piece: Delta) -> None:
        if self._has_finish:
            raise ProtocolError("the server went on after it had finished the answer")
        if self._has_prompt is (piece.prompt is not None):
            raise ProtocolError("the prompt info must come with the first message, and only there")
        if piece.first_index != self._count:
            raise ProtocolError(
                f"expected token {self._count}, the server sent {piece.first_index}"
            )
        self._count += len(piece.token_ids)
        self._has_prompt = True
        self._has_finish = piece.finish is not None

    def check_end(self) -> None:
        if not self._has_finish:
            raise ProtocolError(f"the stream ended after {self._count} tokens without a finish")


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
    )
