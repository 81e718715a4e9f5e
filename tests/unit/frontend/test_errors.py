"""What a failure looks like on the wire."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from frontend_svc import errors
from frontend_svc.errors import Failure, Violation
from svc_wire.frontend_link import Rejected
from svc_wire.ids import FinishReason, RejectReason
from tests.support.fake_scheduler import finished

TRAILERS_MAX_BYTES = 8 * 1024  # what proxies are sure to pass on


def unpacked(
    failure: Failure,
) -> tuple[status_pb2.Status, list[str], error_details_pb2.BadRequest]:
    """The status in the trailer, the names of its details, and the BadRequest among them."""
    [(name, value)] = failure.status().trailing_metadata or ()
    assert name == "grpc-status-details-bin"
    assert isinstance(value, bytes)
    status = status_pb2.Status.FromString(value)
    bad = error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(bad)
    return status, [d.TypeName().rpartition(".")[2] for d in status.details], bad


def test_an_invalid_request_names_its_fields() -> None:
    failure = errors.invalid([Violation("a.b", "is wrong"), Violation("c", "too")])
    status, kinds, bad = unpacked(failure)
    assert (status.code, status.message) == (3, "a.b: is wrong; c: too")
    assert kinds == ["ErrorInfo", "BadRequest"]
    assert [(v.field, v.description) for v in bad.field_violations] == [
        ("a.b", "is wrong"),
        ("c", "too"),
    ]


def test_what_may_go_well_later_says_when() -> None:
    for failure in (
        errors.not_ready("x"),
        errors.draining(),
        errors.queue_full("x"),
        errors.scheduler_lost("x"),
        errors.executor_lost("x"),
    ):
        assert unpacked(failure)[1] == ["ErrorInfo", "RetryInfo"]


def test_whatever_is_quoted_fits_in_the_trailers() -> None:
    huge = "🙂" * 100_000
    violations = [Violation(f"stop.strings[{index}]", huge) for index in range(10_000)]
    for failure in (errors.model_not_found("é" * 100_000, "served"), errors.invalid(violations)):
        status = failure.status()
        [(_, packed)] = status.trailing_metadata or ()
        # gRPC percent-encodes the message: three bytes for each.
        assert len(packed) + 3 * len(status.details.encode()) < TRAILERS_MAX_BYTES


def test_our_own_faults_say_nothing_but_where_to_look() -> None:
    failure = errors.internal("cafe")
    assert (failure.code, unpacked(failure)[1]) == (grpc.StatusCode.INTERNAL, [])
    assert "cafe" in failure.message


@pytest.mark.parametrize(
    ("reason", "code", "told"),
    [
        (RejectReason.QUEUE_FULL, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
        (RejectReason.TOO_LONG, grpc.StatusCode.INVALID_ARGUMENT, "TOO_LONG"),
        (RejectReason.NO_EXECUTOR, grpc.StatusCode.UNAVAILABLE, "NOT_READY"),
        (RejectReason.DRAINING, grpc.StatusCode.UNAVAILABLE, "DRAINING"),
        (RejectReason.INVALID, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        (RejectReason.POLICY, grpc.StatusCode.RESOURCE_EXHAUSTED, "REFUSED_BY_POLICY"),
    ],
)
def test_every_rejection_has_its_status(
    reason: RejectReason, code: grpc.StatusCode, told: str
) -> None:
    failure = errors.from_rejected(Rejected(1, reason, "why"))
    assert (failure.code, failure.reason) == (code, told)
    assert "why" in failure.message


def test_an_execution_that_failed_is_not_an_end_that_the_scheduler_chose() -> None:
    failed = errors.from_finished(finished(1, FinishReason.ERROR, output_tokens=0, message="nan"))
    assert (failed.code, failed.reason) == (grpc.StatusCode.INTERNAL, "EXECUTION_FAILED")
    assert "nan" in failed.message
    given_up = errors.from_finished(finished(1, FinishReason.ABORT, output_tokens=0))
    assert (given_up.code, given_up.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
