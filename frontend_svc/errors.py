"""What a caller is told when something fails: a gRPC status with google.rpc details.

A `Failure` is made where the reason is known and travels up as an exception; only boundary.py turns
it into a status. The caller's faults name the field; what may go well later says when to try again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from svc_wire.frontend_link import Finished, Rejected
from svc_wire.ids import FinishReason, RejectReason

DOMAIN = "twostroke.v1"
RETRY_S = 1.0

# All of it travels in the call's trailing metadata, of which 8 KiB are sure to get through, and
# some of it quotes what the caller sent.
MESSAGE_BYTES_MAX = 600
DESCRIPTION_BYTES_MAX = 200
VIOLATIONS_MAX = 8
"""More are not told."""

Code = grpc.StatusCode


@dataclass(frozen=True, slots=True)
class Violation:
    """A field with a wrong value: its path in the request, and what is wrong with it."""

    field: str
    description: str


@dataclass(eq=False)
class Failure(Exception):
    """How a call ends, other than well."""

    code: grpc.StatusCode
    reason: str
    """One of the reasons that the proto lists; empty for INTERNAL errors of our own."""
    message: str
    violations: Sequence[Violation] = ()
    retry_s: float | None = None
    """Seconds after which it is worth trying again."""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def status(self) -> grpc.Status:
        """What context.abort_with_status takes."""
        details: list[Message] = []
        if self.reason:
            details.append(
                error_details_pb2.ErrorInfo(
                    reason=self.reason, domain=DOMAIN, metadata=dict(self.metadata)
                )
            )
        if self.violations:
            details.append(_bad_request(self.violations))
        if self.retry_s is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromTimedelta(timedelta(seconds=self.retry_s))
            details.append(retry)
        status = status_pb2.Status(
            code=self.code.value[0], message=_clipped(self.message, MESSAGE_BYTES_MAX)
        )
        for detail in details:
            status.details.add().Pack(detail)
        return cast("grpc.Status", rpc_status.to_status(status))


def _clipped(text: str, bytes_max: int) -> str:
    encoded = text.encode()
    if len(encoded) <= bytes_max:
        return text
    return encoded[:bytes_max].decode("utf-8", "ignore") + "…"


def _bad_request(violations: Sequence[Violation]) -> error_details_pb2.BadRequest:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(
                field=violation.field,
                description=_clipped(violation.description, DESCRIPTION_BYTES_MAX),
            )
            for violation in violations
        ]
    )


# -- the caller's --------------------------------------------------------------------------------


def invalid(violations: Sequence[Violation]) -> Failure:
    assert violations
    told = violations[:VIOLATIONS_MAX]
    message = "; ".join(f"{violation.field}: {violation.description}" for violation in told)
    return Failure(Code.INVALID_ARGUMENT, "INVALID_FIELD", message, told)


def unreadable(why: str) -> Failure:
    message = f"the request cannot be parsed: {why}"
    return Failure(Code.INVALID_ARGUMENT, "INVALID_FIELD", message)


def model_not_found(asked: str, served: str) -> Failure:
    message = f"{served!r} is served here, not {asked!r}"
    return Failure(Code.NOT_FOUND, "INVALID_FIELD", message, [Violation("model", message)])


def too_long(field_path: str, message: str) -> Failure:
    violation = Violation(field_path, message)
    return Failure(Code.INVALID_ARGUMENT, "TOO_LONG", message, [violation])


def slow_reader(tokens: int) -> Failure:
    message = f"the stream was read too slowly: {tokens} tokens were waiting to be sent"
    return Failure(Code.RESOURCE_EXHAUSTED, "SLOW_READER", message)


def cannot_resume(why: str) -> Failure:
    message = f"the answer cannot be resumed: {why}"
    return Failure(Code.FAILED_PRECONDITION, "CANNOT_RESUME", message)


# -- the world's ---------------------------------------------------------------------------------


def not_ready(why: str) -> Failure:
    return Failure(Code.UNAVAILABLE, "NOT_READY", f"not ready: {why}", retry_s=RETRY_S)


def draining(message: str = "the server is shutting down") -> Failure:
    return Failure(Code.UNAVAILABLE, "DRAINING", message, retry_s=RETRY_S)


def queue_full(message: str) -> Failure:
    return Failure(Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", message, retry_s=RETRY_S)


def refused_by_policy(why: str) -> Failure:
    message = f"the scheduling policy refuses the request: {why}"
    return Failure(Code.RESOURCE_EXHAUSTED, "REFUSED_BY_POLICY", message, retry_s=RETRY_S)


def scheduler_lost(why: str) -> Failure:
    message = f"the scheduler was lost: {why}"
    return Failure(Code.UNAVAILABLE, "SCHEDULER_LOST", message, retry_s=RETRY_S)


def executor_lost(why: str) -> Failure:
    message = f"the executor was lost: {why}"
    return Failure(Code.UNAVAILABLE, "EXECUTOR_LOST", message, retry_s=RETRY_S)


# -- ours ----------------------------------------------------------------------------------------


def internal(reference: str) -> Failure:
    """The text of the cause stays in the log; the reference finds it there."""
    message = f"internal error; the server's log has the cause under reference {reference}"
    return Failure(Code.INTERNAL, "", message)


# -- what the scheduler says ---------------------------------------------------------------------


def from_rejected(rejected: Rejected) -> Failure:
    match rejected.reason:
        case RejectReason.QUEUE_FULL:
            return queue_full(f"the queue is full: {rejected.message}")
        case RejectReason.TOO_LONG:
            return Failure(Code.INVALID_ARGUMENT, "TOO_LONG", rejected.message)
        case RejectReason.NO_EXECUTOR:
            return not_ready(rejected.message)
        case RejectReason.DRAINING:
            return draining(rejected.message)
        case RejectReason.INVALID:
            return Failure(Code.INVALID_ARGUMENT, "INVALID_FIELD", rejected.message)
        case RejectReason.POLICY:
            return refused_by_policy(rejected.message)


def from_finished(finished: Finished) -> Failure:
    """For ends that are not the request's own: the executor failed, or the scheduler gave it up."""
    if finished.reason is FinishReason.ERROR:
        return Failure(Code.INTERNAL, "EXECUTION_FAILED", finished.message)
    return draining(f"the scheduler gave up the request ({finished.reason.name})")
