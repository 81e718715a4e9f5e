"""GenerationService: one handler, from the request to the end of its stream.

Nothing is sent before the first token: then any earlier failure is a status alone, which clients,
proxies and gRPC's own retry policy may retry. The prompt's facts come with the first message.
"""

import asyncio
import itertools
import secrets
import time
from concurrent.futures import Executor
from urllib.parse import quote

import structlog

from frontend_svc import errors
from frontend_svc.backend import Backend
from frontend_svc.boundary import Context, is_overdue
from frontend_svc.errors import Failure
from frontend_svc.preparation import Prepared, prepare
from frontend_svc.responses import Times, finish, response
from frontend_svc.resume import RESUME_HEADER, ResumeToken
from frontend_svc.settings import Settings
from frontend_svc.streams import LiveRequest
from frontend_svc.tally import Tally
from frontend_svc.validation import REQUEST_ID_MAX
from svc_wire.ids import FinishReason
from twostroke.v1 import generation_pb2 as pb
from twostroke.v1.generation_pb2_grpc import GenerationServiceServicer

REQUEST_ID_HEADER = "x-request-id"
DEADLINE_MAX_S = 86_400.0
"""Some clients say 'no deadline' with one in a hundred years."""
log = structlog.get_logger(service="frontend")

_HEADER_SAFE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


class GenerationService(GenerationServiceServicer):
    def __init__(
        self, backend: Backend, workers: Executor, settings: Settings, tally: Tally
    ) -> None:
        self._backend = backend
        self._tally = tally
        self._workers = workers
        self._settings = settings
        self._keys = itertools.count(1)
        self._streams = 0

    # A coroutine that writes, not the generator of the stub: a generator that is dropped in the
    # middle of a write runs its `finally` only when it is collected, and the request would go on.
    async def Generate(  # type: ignore[override]
        self, request: pb.GenerateRequest, context: Context
    ) -> None:
        times = Times(arrived=time.monotonic())
        request_id = _request_id(request, context)
        try:
            if refusal := self._refusal():
                raise refusal
            self._streams += 1
            try:
                await self._generate(request, request_id, context, times)
            finally:
                self._streams -= 1
        except Failure as failure:
            failure.metadata = {"request_id": request_id[:REQUEST_ID_MAX]}
            tell = log.warning if failure.code is errors.Code.INTERNAL else log.debug
            tell("request failed", request_id=request_id, reason=failure.reason, why=str(failure))
            raise

    def _refusal(self) -> Failure | None:
        if self._streams >= self._settings.streams_max:
            return errors.queue_full(f"{self._streams} streams are open on this front end")
        return self._backend.refusal()

    async def _generate(
        self, request: pb.GenerateRequest, request_id: str, context: Context, times: Times
    ) -> None:
        prepared = await self._prepare(request, _deadline_ns(context))
        live = LiveRequest(
            prepared.submit,
            prepared.text,
            wants_text=prepared.checked.wants_text,
            wants_token_ids=prepared.checked.wants_token_ids,
            buffer_tokens=self._settings.stream_buffer_tokens,
        )
        times.submitted = time.monotonic()
        self._backend.submit(live)
        try:
            await self._stream(live, prepared, request_id, context, times)
        except asyncio.CancelledError:
            if live.overflow is None:
                raise
            raise live.overflow from None
        finally:
            self._backend.release(
                live, FinishReason.DEADLINE if is_overdue(context) else FinishReason.ABORT
            )
            self._tally.output_tokens += live.new_tokens

    async def _prepare(self, request: pb.GenerateRequest, deadline_ns: int) -> Prepared:
        model = self._backend.model
        assert model is not None, "requests are refused before a model is known"
        key, fresh = next(self._keys), ResumeToken.draw(model)
        prepared = await asyncio.get_running_loop().run_in_executor(
            self._workers, prepare, request, model, key, fresh, deadline_ns
        )
        if self._backend.model is None or self._backend.model.tokenizer is not model.tokenizer:
            raise errors.executor_lost("another model is served now")
        return prepared

    async def _stream(
        self,
        live: LiveRequest,
        prepared: Prepared,
        request_id: str,
        context: Context,
        times: Times,
    ) -> None:
        """Writes pieces as they come, the last with the finish. Raises Failure."""
        piece = await live.take()
        times.first_token = time.monotonic()
        self._tally.begin_answer(times)
        headers = [(REQUEST_ID_HEADER, quote(request_id, _HEADER_SAFE))]
        if prepared.checked.wants_token_ids:  # without, there is nothing to go on from
            headers.append((RESUME_HEADER, prepared.token.text()))
        await context.send_initial_metadata(headers)
        message = response(piece, prepared.tokenizer)
        message.prompt.token_count = prepared.prompt_len
        message.prompt.request_id = request_id
        while piece.ending is None:
            await context.write(message)
            asked = time.monotonic()
            piece = await live.take()
            times.pause = max(times.pause, time.monotonic() - asked)
            message = response(piece, prepared.tokenizer)
        now = time.monotonic()
        end = finish(live, piece.ending, prepared.prompt_len, times, now)
        self._tally.end_answer(end, times, live.new_tokens, now)
        message.finish.CopyFrom(end)
        await context.write(message)


def _request_id(request: pb.GenerateRequest, context: Context) -> str:
    """The caller's name for it, in the request or in the metadata; else one that we make up."""
    if request.request_id:
        return request.request_id
    for name, value in context.invocation_metadata() or ():
        if name == REQUEST_ID_HEADER and isinstance(value, str) and value:
            return value[:REQUEST_ID_MAX]
    return secrets.token_hex(8)


def _deadline_ns(context: Context) -> int:
    """The call's deadline on CLOCK_MONOTONIC; 0 if it has none, or one that is ages away."""
    time_left = context.time_remaining()
    if time_left is None or time_left > DEADLINE_MAX_S:
        return 0
    return time.monotonic_ns() + int(time_left * 1e9)
