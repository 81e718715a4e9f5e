"""The scheduler's link to the front ends: who they are, whose a sequence is, what they are told.

A front end that is silent for too long, or too slow to take its messages, is dropped: one of them
must never hold up the others or the executor. Its requests may be taken over by others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog
import zmq

from svc_wire.errors import MessageError
from svc_wire.frontend_link import (
    Abort,
    AskPolicy,
    Attach,
    Attached,
    Detach,
    Finished,
    Outputs,
    Ping,
    PolicyInForce,
    Rejected,
    Status,
    Submit,
    Unknown,
    to_frontend,
    to_scheduler,
)
from svc_wire.ids import FinishReason, SeqId
from svc_wire.rundir import remove_socket

SILENCE_MAX_S = 10.0
MESSAGES_MAX = 10_000
"""Messages that may queue for one front end before it counts as too slow."""

log = structlog.get_logger(service="scheduler")


Logprobs = Sequence[tuple[int, float]]
"""(id, log-probability) of a token itself, then of the most likely ones; empty if nobody asked."""


@dataclass(slots=True, eq=False)
class Frontend:
    """One attached front end."""

    identity: bytes
    name: str
    heard_at: float
    sequences: dict[int, SeqId] = field(default_factory=dict)
    """Its live requests: its key -> our sequence."""


@dataclass(slots=True, eq=False)
class _Pending:
    """What a step brought for one front end, until it is sent."""

    keys: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, float]] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)

    def outputs(self) -> Outputs:
        ids, values = zip(*self.logprobs, strict=True) if self.logprobs else ((), ())
        return Outputs(
            np.array(self.keys, "<u8").tobytes(),
            np.array(self.indices, "<i4").tobytes(),
            np.array(self.tokens, "<i4").tobytes(),
            tuple(self.finished),
            bytes(self.counts) if self.logprobs else b"",
            np.array(ids, "<i4").tobytes(),
            np.array(values, "<f4").tobytes(),
        )


Request = Submit | Abort | AskPolicy


class Frontends:
    """Used by one thread; times are seconds, monotonic."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, MESSAGES_MAX)
        self.socket.bind(endpoint)
        self._endpoint = endpoint
        self._by_identity: dict[bytes, Frontend] = {}
        self._early: dict[bytes, Attach] = {}
        self._owner: dict[SeqId, tuple[Frontend, int]] = {}
        self._pending: dict[Frontend, _Pending] = {}
        self._dropped: list[SeqId] = []

    # -- in ----------------------------------------------------------------------------------------

    def receive(
        self, now: float, attached: Attached | None, status: Callable[[], Status]
    ) -> Iterator[tuple[Frontend, Request]]:
        """Handles whatever lies ready on the socket; yields what is for the core. Never blocks.

        `attached` is the answer to an Attach; None as long as the model is not known. `status` is
        called when somebody asks, which is not every step.
        """
        while self.socket.poll(0):
            identity, *parts = self.socket.recv_multipart()
            try:
                message = to_scheduler.decode(b"".join(parts))
            except MessageError as error:
                log.warning("a front end sent nonsense", error=str(error))
                continue
            frontend = self._by_identity.get(identity)
            if isinstance(message, Attach):
                self._attach(identity, message, now, attached, status())
            elif frontend is None:
                self._send(identity, Unknown())
            else:
                frontend.heard_at = now
                match message:
                    case Ping():
                        self._send(identity, status())
                    case Detach():
                        self._drop(frontend, "it detached")
                    case Submit() | Abort() | AskPolicy():
                        yield frontend, message

    def _attach(
        self, identity: bytes, attach: Attach, now: float, attached: Attached | None, status: Status
    ) -> None:
        known = self._by_identity.get(identity)
        if known is not None and known.sequences:
            self._drop(known, "it attached anew")
        if attached is None:
            self._early[identity] = attach
            self._send(identity, status)
            return
        if attach.protocol != attached.protocol:
            log.error("a front end speaks another protocol", version=attach.protocol)
            return
        if identity not in self._by_identity:
            log.info("front end attached", name=attach.name)
        self._by_identity[identity] = Frontend(identity, attach.name, now)
        self._send(identity, attached)
        self._send(identity, status)

    def attach_early(self, now: float, attached: Attached, status: Status) -> None:
        """Attaches those who asked before there was a model to tell them of."""
        early, self._early = self._early, {}
        for identity, attach in early.items():
            self._attach(identity, attach, now, attached, status)

    def sweep(self, now: float) -> None:
        """Drops front ends that have been silent for too long."""
        for frontend in list(self._by_identity.values()):
            if now - frontend.heard_at > SILENCE_MAX_S:
                self._drop(frontend, "it is silent")

    def drop_all(self, reason: str) -> None:
        """They have to attach anew, and are told at once."""
        for frontend in list(self._by_identity.values()):
            self._drop(frontend, reason)
            self._send(frontend.identity, Unknown())

    def _drop(self, frontend: Frontend, reason: str) -> None:
        if self._by_identity.pop(frontend.identity, None) is None:
            return
        log.info("front end dropped", name=frontend.name, reason=reason)
        self._pending.pop(frontend, None)
        for seq_id in frontend.sequences.values():
            del self._owner[seq_id]
            self._dropped.append(seq_id)
        frontend.sequences.clear()

    def take_dropped(self) -> list[SeqId]:
        """Sequences whose front end has gone since the last call, and that no other has taken."""
        dropped, self._dropped = self._dropped, []
        return [seq_id for seq_id in dropped if seq_id not in self._owner]

    # -- which sequence is whose -------------------------------------------------------------------

    def accept(self, frontend: Frontend, key: int, seq_id: SeqId) -> None:
        """Notes that `seq_id` serves the front end's `key`, and nobody else's."""
        if (owner := self._owner.pop(seq_id, None)) is not None:
            self._tell_taken_over(*owner)
        frontend.sequences[key] = seq_id
        self._owner[seq_id] = (frontend, key)

    def _tell_taken_over(self, frontend: Frontend, key: int) -> None:
        del frontend.sequences[key]
        finished = Finished(
            key=key,
            reason=FinishReason.ABORT,
            message="",
            prompt_tokens=0,
            cached_tokens=0,
            output_tokens=0,
            preemptions=0,
            queued_ns=0,
            running_ns=0,
            busy_share=0.0,
        )
        self._pending.setdefault(frontend, _Pending()).finished.append(finished)

    # -- out ---------------------------------------------------------------------------------------

    def reject(self, frontend: Frontend, rejected: Rejected) -> None:
        self._send(frontend.identity, rejected)

    def tell_policy(self, frontend: Frontend, answer: PolicyInForce) -> None:
        self._send(frontend.identity, answer)

    def add_token(self, seq_id: SeqId, index: int, token: int, logprobs: Logprobs = ()) -> None:
        """Adds a token to what its front end is sent at the next `flush`."""
        if (owner := self._owner.get(seq_id)) is not None:
            pending = self._pending.setdefault(owner[0], _Pending())
            pending.keys.append(owner[1])
            pending.indices.append(index)
            pending.tokens.append(token)
            pending.counts.append(len(logprobs))
            pending.logprobs.extend(logprobs)

    def finish(self, seq_id: SeqId, finished: Finished) -> None:
        """Adds an end to what its front end is sent at the next `flush`; forgets the sequence."""
        if (owner := self._owner.pop(seq_id, None)) is not None:
            frontend, key = owner
            del frontend.sequences[key]
            pending = self._pending.setdefault(frontend, _Pending())
            pending.finished.append(finished)

    def key_of(self, seq_id: SeqId) -> int | None:
        """The front end's key of a live sequence."""
        owner = self._owner.get(seq_id)
        return owner[1] if owner else None

    def flush(self) -> None:
        """Sends what was added, one message a front end."""
        pending, self._pending = self._pending, {}
        for frontend, batch in pending.items():
            self._send(frontend.identity, batch.outputs())

    def broadcast(self, status: Status) -> None:
        for identity in list(self._by_identity):
            self._send(identity, status)

    def _send(
        self,
        identity: bytes,
        message: Attached | Unknown | Rejected | Outputs | Status | PolicyInForce,
    ) -> None:
        try:
            self.socket.send_multipart([identity, to_frontend.encode(message)], zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError) as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            if (frontend := self._by_identity.get(identity)) is not None:
                self._drop(frontend, f"it takes no messages: {error}")

    def close(self) -> None:
        self.socket.close(0)
        remove_socket(self._endpoint)
