"""What the table of errors.py makes of statuses, details that are broken included."""

import re

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError, Metadata

import twostroke_client as ts
from twostroke_client import errors


def failure(code: grpc.StatusCode, details: bytes | None) -> AioRpcError:
    trailing = Metadata() if details is None else Metadata(("grpc-status-details-bin", details))
    return AioRpcError(code, Metadata(), trailing, "text")


def info(reason: str, domain: str = "twostroke.v1") -> bytes:
    status = status_pb2.Status()
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain))
    return bytes(status.SerializeToString())


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    assert drawn == [kind.__name__ for kind in _descendants(ts.TwostrokeError)]
    assert set(drawn) | {"TwostrokeError"} <= set(ts.__all__)


def _descendants(kind: type[ts.TwostrokeError]) -> list[type[ts.TwostrokeError]]:
    return [found for sub in kind.__subclasses__() for found in (sub, *_descendants(sub))]


def test_the_reason_decides_before_the_status() -> None:
    error = errors.error_from_rpc(failure(grpc.StatusCode.INVALID_ARGUMENT, info("TOO_LONG")))
    assert type(error) is ts.TooLong
    assert str(error) == "text"


def test_reasons_of_other_domains_do_not_count() -> None:
    details = info("QUEUE_FULL", domain="proxy.example")
    error = errors.error_from_rpc(failure(grpc.StatusCode.UNAVAILABLE, details))
    assert type(error) is ts.Unreachable


@pytest.mark.parametrize(
    "details",
    [
        None,
        b"\xff\xff",
        status_pb2.Status(details=[Any(type_url="x/unknown.Kind")]).SerializeToString(),
        status_pb2.Status(
            details=[Any(type_url="x/google.rpc.ErrorInfo", value=b"\xff")]
        ).SerializeToString(),
    ],
    ids=["none", "garbage", "unknown kind", "broken kind"],
)
def test_broken_details_leave_the_status(details: bytes | None) -> None:
    error = errors.error_from_rpc(failure(grpc.StatusCode.INTERNAL, details))
    assert type(error) is ts.ExecutionFailed


def test_an_unknown_status_keeps_its_name() -> None:
    error = errors.error_from_rpc(failure(grpc.StatusCode.DATA_LOSS, None))
    assert isinstance(error, ts.UnexpectedStatus)
    assert (error.status, str(error)) == ("DATA_LOSS", "DATA_LOSS: text")
