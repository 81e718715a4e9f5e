"""Errors of the client, as a tree.

TwostrokeError
├── RequestError             the request is at fault: sending it again does not help
│   ├── InvalidRequest       a field has a wrong value; `field` names it
│   ├── TooLong              prompt and max_tokens can never fit
│   └── ModelNotFound        another model is served
├── InvalidAddress           what a client was given as address cannot be one
├── Unavailable              the server cannot serve now; tried again
│   ├── QueueFull            `retry_after_s` says when to try again
│   ├── RefusedByPolicy      the scheduling policy does not take it now: its deadline is too near
│   ├── NotReady             the model is not loaded yet, or the executor is away
│   ├── Draining             the server is about to stop
│   ├── Unreachable          no connection to the address, or it broke and came not back
│   └── Lost                 a process behind the front end died
│       ├── ExecutorLost
│       └── SchedulerLost
├── SlowReader               this stream was read too slowly, and was ended
├── ExecutionFailed          the server failed to compute the answer
├── CannotResume             the stream broke, and another model is served now
├── DeadlineExceeded         the time that the caller allowed is up
├── Cancelled                the stream was closed while it was read
├── ProtocolError            the server broke its contract: tokens missing, twice, or no end
└── UnexpectedStatus         any other status; `status` names it

The reason in google.rpc.ErrorInfo decides the class; the gRPC status does where there is none, as
with errors that the network or a proxy makes. Both tables are at the end of this file.
"""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

ERROR_DOMAIN = "twostroke.v1"
_DETAILS_KEY = "grpc-status-details-bin"


class TwostrokeError(Exception):
    """Base of everything that this package raises on purpose. Its text is for a person."""


class RequestError(TwostrokeError):
    pass


class InvalidRequest(RequestError):
    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field
        """Path of the field at fault, as in the proto: "sampling.top_p". May be empty."""


class TooLong(RequestError):
    pass


class ModelNotFound(RequestError):
    pass


class InvalidAddress(TwostrokeError):
    pass


class Unavailable(TwostrokeError):
    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Seconds after which the server wants to be asked again, if it said so."""


class QueueFull(Unavailable):
    pass


class RefusedByPolicy(Unavailable):
    pass


class NotReady(Unavailable):
    pass


class Draining(Unavailable):
    pass


class Unreachable(Unavailable):
    pass


class Lost(Unavailable):
    pass


class ExecutorLost(Lost):
    pass


class SchedulerLost(Lost):
    pass


class SlowReader(TwostrokeError):
    pass


class ExecutionFailed(TwostrokeError):
    pass


class CannotResume(TwostrokeError):
    pass


class DeadlineExceeded(TwostrokeError):
    pass


class Cancelled(TwostrokeError):
    pass


class ProtocolError(TwostrokeError):
    pass


class UnexpectedStatus(TwostrokeError):
    def __init__(self, message: str, status: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        """Name of the gRPC status, for example "PERMISSION_DENIED"."""


@contextmanager
def typed_errors() -> Iterator[None]:
    """Turns what a gRPC call raises inside into an error of this tree."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error) from error


def error_from_rpc(error: grpc.RpcError) -> TwostrokeError:
    """The typed error for what a call raised, sync or async."""
    code, message = error.code(), error.details() or "no reason given"
    details = _Details.parse(error)
    kind = _BY_REASON.get(details.reason) or _BY_STATUS.get(code)
    if kind is None:
        return UnexpectedStatus(message, code.name)
    if issubclass(kind, InvalidRequest):
        return kind(message, details.field)
    if issubclass(kind, Unavailable):
        return kind(message, details.retry_after_s)
    return kind(message)


@dataclass(frozen=True, slots=True)
class _Details:
    """What google.rpc.Status carries beside code and text. Absent or unreadable: all empty."""

    reason: str = ""
    field: str = ""
    retry_after_s: float | None = None

    @classmethod
    def parse(cls, error: grpc.RpcError) -> "_Details":
        info = error_details_pb2.ErrorInfo()
        bad = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        # Pairs at run time in both kinds of call; the stubs disagree.
        metadata = cast("Iterable[tuple[str, bytes]]", error.trailing_metadata() or ())
        try:
            status = status_pb2.Status.FromString(dict(metadata).get(_DETAILS_KEY, b""))
            for packed, part in itertools.product(status.details, (info, bad, retry)):
                packed.Unpack(part)  # does nothing if it holds another kind
        except DecodeError:
            return cls()
        return cls(
            reason=info.reason if info.domain == ERROR_DOMAIN else "",
            field=bad.field_violations[0].field if bad.field_violations else "",
            retry_after_s=retry.retry_delay.ToNanoseconds() / 1e9
            if retry.HasField("retry_delay")
            else None,
        )


_BY_REASON: dict[str, type[TwostrokeError]] = {
    "INVALID_FIELD": InvalidRequest,
    "TOO_LONG": TooLong,
    "QUEUE_FULL": QueueFull,
    "REFUSED_BY_POLICY": RefusedByPolicy,
    "NOT_READY": NotReady,
    "DRAINING": Draining,
    "SLOW_READER": SlowReader,
    "EXECUTOR_LOST": ExecutorLost,
    "SCHEDULER_LOST": SchedulerLost,
    "EXECUTION_FAILED": ExecutionFailed,
    "CANNOT_RESUME": CannotResume,
}

_BY_STATUS: dict[grpc.StatusCode, type[TwostrokeError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.UNAVAILABLE: Unreachable,
    grpc.StatusCode.INTERNAL: ExecutionFailed,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    # Not by us, who would not be told: a server that shuts down cancels what arrives just then.
    grpc.StatusCode.CANCELLED: Unreachable,
}
