"""The border between our handlers and gRPC: what comes in is readable, what goes out is a status.

Rules: whatever comes in is counted, and so is how it ends; a request that cannot be parsed is the
caller's error, not ours; a `Failure` becomes its status; any other exception is logged under a
reference, and the caller gets the reference alone.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, Message

from frontend_svc import errors
from frontend_svc.errors import Code
from frontend_svc.tally import Tally

OUR_METHODS = "/twostroke.v1."
ABORT_WAIT_S = 5.0

# gRPC's stubs are generic where its classes are not.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context = grpc.aio.ServicerContext[Message, Message]
Behaviour = Callable[["Message | Unreadable", Context], Awaitable[Message | None]]

log = structlog.get_logger(service="frontend")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands where a request could not be parsed."""

    why: str


class Boundary(grpc.aio.ServerInterceptor):
    """Wraps each handler of ours once."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        method = handler_call_details.method
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            # An unknown method (handler None) must not be kept: anybody can make up more.
            if handler is None or not method.startswith(OUR_METHODS):
                return handler
            self._wrapped[method] = _wrap(handler, method.rpartition("/")[2], self._tally)
        return self._wrapped[method]


def _wrap(handler: Handler, method: str, tally: Tally) -> Handler:
    make = (
        grpc.unary_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary
    return make(
        _guarded(cast("Behaviour", behaviour), method, tally),
        request_deserializer=_parser(handler.request_deserializer),
        response_serializer=handler.response_serializer,
    )


def _parser(parse: Callable[[bytes], Message] | None) -> Callable[[bytes], Message | Unreadable]:
    assert parse is not None, "our methods take messages, not bytes"

    def parse_or_say_why(data: bytes) -> Message | Unreadable:
        try:
            return parse(data)
        except (DecodeError, UnicodeDecodeError) as error:
            return Unreadable(str(error))

    return parse_or_say_why


def _guarded(behaviour: Behaviour, method: str, tally: Tally) -> Behaviour:
    end = partial(tally.end, method)

    async def guarded(request: Message | Unreadable, context: Context) -> Message | None:
        tally.begin(method)
        try:
            if isinstance(request, Unreadable):
                raise errors.unreadable(request.why)
            answer = await behaviour(request, context)
            end(Code.OK)
            return answer
        except errors.Failure as failure:
            end(failure.code, failure.reason)
            await _abort(context, failure)
        except asyncio.CancelledError:
            end(Code.DEADLINE_EXCEEDED if is_overdue(context) else Code.CANCELLED)
            raise
        except Exception as error:
            if context.cancelled() or context.done():  # the client has gone, so writing failed
                end(Code.CANCELLED)
                log.debug("the client has gone", error=str(error))
                raise asyncio.CancelledError from error
            end(Code.INTERNAL)
            reference = secrets.token_hex(4)
            log.error("a handler failed", reference=reference, exc_info=error)
            await _abort(context, errors.internal(reference))

    return guarded


def is_overdue(context: Context) -> bool:
    """Whether the call's deadline has passed."""
    time_left = context.time_remaining()
    return time_left is not None and time_left <= 0


async def _abort(context: Context, failure: errors.Failure) -> NoReturn:
    """Ends the call with the failure's status; raises, as gRPC wants it.

    The status queues behind messages that the client has not read; a client that never reads would
    keep the handler for ever, so it leaves after a while. gRPC sends the status if it ever can.
    """
    try:
        await asyncio.wait_for(context.abort_with_status(failure.status()), ABORT_WAIT_S)
    except TimeoutError:
        raise asyncio.CancelledError from None
    raise AssertionError("abort_with_status returned")
