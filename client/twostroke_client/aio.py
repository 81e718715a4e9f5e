"""The asyncio client: client.py with awaits. What the methods mean is written there."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Self, Unpack, cast

import grpc.aio
from grpc.aio import UnaryStreamCall
from tenacity import AsyncRetrying

from twostroke.v1 import admin_pb2
from twostroke.v1 import generation_pb2 as pb
from twostroke.v1.admin_pb2_grpc import AdminServiceStub
from twostroke.v1.generation_pb2_grpc import GenerationServiceStub, ModelServiceStub
from twostroke_client import policies, values
from twostroke_client.address import checked
from twostroke_client.channel import CHANNEL_OPTIONS, INFO_TIMEOUT_S
from twostroke_client.errors import Cancelled, Unavailable, typed_errors
from twostroke_client.exchange import Exchange, Start, whole
from twostroke_client.policies import PolicyState
from twostroke_client.retries import Deadline, RetryPolicy
from twostroke_client.values import Completion, Delta, GenerateOptions, Prompt

if TYPE_CHECKING:
    from twostroke.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from twostroke.v1.generation_pb2_grpc import GenerationServiceAsyncStub, ModelServiceAsyncStub

Call = UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]


class AsyncStream(AsyncIterator[Delta]):
    """See Stream. Cancelling the task that reads cancels the request as well."""

    def __init__(
        self,
        request: pb.GenerateRequest,
        start: Start[Call],
        retry: RetryPolicy,
        deadline: Deadline,
    ) -> None:
        self._exchange = Exchange(request, start, deadline)
        self._beginning = AsyncRetrying(**retry.to_begin(deadline))
        self._resuming = AsyncRetrying(**retry.to_resume(deadline)) if retry.resume_s else None

    async def __anext__(self) -> Delta:
        exchange = self._exchange
        with exchange.closed_on_failure():
            if not exchange.begun and not exchange.over:
                await self._beginning(self._begin)
            if not exchange.pieces and not exchange.over:
                await self._read_on()
        if not exchange.pieces:
            raise StopAsyncIteration
        return exchange.pieces.popleft()

    async def _begin(self) -> None:
        with self._exchange.attempt():
            while not self._exchange.begun:
                await self._read()
        self._exchange.take_headers(await self._exchange.call.initial_metadata())

    async def _read_on(self) -> None:
        try:
            await self._read()
        except Unavailable as error:
            if self._resuming is None or not self._exchange.can_resume(error):
                raise
            await self._resuming(self._resume)

    async def _resume(self) -> None:
        with self._exchange.attempt():
            await self._read()

    async def _read(self) -> None:
        message = None
        try:
            with self._exchange.reading():
                message = await self._exchange.call.read()
        except asyncio.CancelledError:
            if self._exchange.over:  # closed by another task, so this one was not cancelled
                raise Cancelled("the stream was closed while it was read") from None
            raise
        self._exchange.take(message if isinstance(message, pb.GenerateResponse) else None)

    async def aclose(self) -> None:
        self._exchange.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncClient:
    """See Client. Belongs to the event loop in which it is made."""

    def __init__(
        self, address: str = values.DEFAULT_ADDRESS, *, retry: RetryPolicy | None = None
    ) -> None:
        self._retry = retry or RetryPolicy()
        self._channel = grpc.aio.insecure_channel(checked(address), CHANNEL_OPTIONS)
        # One generated class serves both kinds of channel; its async type is for the checker only.
        self._generation = cast("GenerationServiceAsyncStub", GenerationServiceStub(self._channel))
        self._models = cast("ModelServiceAsyncStub", ModelServiceStub(self._channel))
        self._admin = cast("AdminServiceAsyncStub", AdminServiceStub(self._channel))

    def generate(
        self,
        prompt: Prompt,
        *,
        timeout_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncStream:
        request = values.build_request(prompt, options)

        def start(request: pb.GenerateRequest, left_s: float | None) -> Call:
            return self._generation.Generate(request, timeout=left_s)

        return AsyncStream(request, start, self._retry, Deadline(timeout_s))

    async def complete(
        self,
        prompt: Prompt,
        *,
        timeout_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        async with self.generate(prompt, timeout_s=timeout_s, **options) as stream:
            return whole([piece async for piece in stream])

    async def model_info(self, *, timeout_s: float = INFO_TIMEOUT_S) -> values.ModelInfo:
        with typed_errors():
            message = await self._models.GetModelInfo(pb.GetModelInfoRequest(), timeout=timeout_s)
        return values.model_info_from(message)

    async def server_status(self, *, timeout_s: float = INFO_TIMEOUT_S) -> values.ServerStatus:
        with typed_errors():
            message = await self._models.GetServerStatus(
                pb.GetServerStatusRequest(), timeout=timeout_s
            )
        return values.server_status_from(message)

    async def policy(self, *, timeout_s: float = INFO_TIMEOUT_S) -> PolicyState:
        with typed_errors():
            answer = await self._admin.GetPolicy(admin_pb2.GetPolicyRequest(), timeout=timeout_s)
        return policies.state_from(answer.state)

    async def set_policy(
        self,
        name: str,
        options: Mapping[str, str] | None = None,
        *,
        timeout_s: float = INFO_TIMEOUT_S,
    ) -> PolicyState:
        request = admin_pb2.SetPolicyRequest(name=name, options=options)
        with typed_errors():
            answer = await self._admin.SetPolicy(request, timeout=timeout_s)
        return policies.state_from(answer.state)

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
