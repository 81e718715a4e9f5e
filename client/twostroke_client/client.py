"""The blocking client."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Self, Unpack

import grpc
from tenacity import Retrying

from twostroke.v1 import admin_pb2
from twostroke.v1 import generation_pb2 as pb
from twostroke.v1.admin_pb2_grpc import AdminServiceStub
from twostroke.v1.generation_pb2_grpc import GenerationServiceStub, ModelServiceStub
from twostroke_client import policies, values
from twostroke_client.address import checked
from twostroke_client.channel import CHANNEL_OPTIONS, INFO_TIMEOUT_S
from twostroke_client.errors import Unavailable, typed_errors
from twostroke_client.exchange import Exchange, Start, whole
from twostroke_client.policies import PolicyState
from twostroke_client.retries import Deadline, RetryPolicy
from twostroke_client.values import Completion, Delta, GenerateOptions, Prompt

if TYPE_CHECKING:
    from grpc import _CallIterator as Call  # a name that only the type stubs have


class Stream(Iterator[Delta]):
    """An answer as it comes. Close it, or leave its `with` block, and the server stops working.

    The request is on its way as soon as the stream exists, so that many can be made and then read.
    If the connection breaks, another one goes on with the answer after a pause.
    Iterating raises an error of the tree in errors.py; after that the stream is at its end.
    """

    def __init__(
        self,
        request: pb.GenerateRequest,
        start: "Start[Call[pb.GenerateResponse]]",
        retry: RetryPolicy,
        deadline: Deadline,
    ) -> None:
        self._exchange = Exchange(request, start, deadline)
        self._beginning = Retrying(**retry.to_begin(deadline))
        self._resuming = Retrying(**retry.to_resume(deadline)) if retry.resume_s else None

    def __next__(self) -> Delta:
        exchange = self._exchange
        with exchange.closed_on_failure():
            if not exchange.begun and not exchange.over:
                self._beginning(self._begin)
            if not exchange.pieces and not exchange.over:
                self._read_on()
        if not exchange.pieces:
            raise StopIteration
        return exchange.pieces.popleft()

    def _begin(self) -> None:
        with self._exchange.attempt():
            while not self._exchange.begun:
                self._read()
        self._exchange.take_headers(self._exchange.call.initial_metadata())

    def _read_on(self) -> None:
        try:
            self._read()
        except Unavailable as error:
            if self._resuming is None or not self._exchange.can_resume(error):
                raise
            self._resuming(self._resume)

    def _resume(self) -> None:
        with self._exchange.attempt():
            self._read()

    def _read(self) -> None:
        message = None
        with self._exchange.reading():
            message = next(self._exchange.call, None)
        self._exchange.take(message)

    def close(self) -> None:
        """Cancels the request if it has not ended."""
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """A connection to a server, for any number of threads. `address` is host:port or unix:PATH.

    Raises InvalidAddress. Connects when it is first used. Close it, or use it as a context manager.
    """

    def __init__(
        self, address: str = values.DEFAULT_ADDRESS, *, retry: RetryPolicy | None = None
    ) -> None:
        self._retry = retry or RetryPolicy()
        self._channel = grpc.insecure_channel(checked(address), CHANNEL_OPTIONS)
        self._generation = GenerationServiceStub(self._channel)
        self._models = ModelServiceStub(self._channel)
        self._admin = AdminServiceStub(self._channel)

    def generate(
        self,
        prompt: Prompt,
        *,
        timeout_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Streams the continuation of `prompt`. `timeout_s` bounds all of it, retries included.

        Raises InvalidRequest for a value that cannot be sent; iterating raises the others.
        """
        request = values.build_request(prompt, options)

        def start(request: pb.GenerateRequest, left_s: float | None) -> "Call[pb.GenerateResponse]":
            return self._generation.Generate(request, timeout=left_s)

        return Stream(request, start, self._retry, Deadline(timeout_s))

    def complete(
        self,
        prompt: Prompt,
        *,
        timeout_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """As generate, but waits for the whole answer."""
        with self.generate(prompt, timeout_s=timeout_s, **options) as stream:
            return whole(list(stream))

    def model_info(self, *, timeout_s: float = INFO_TIMEOUT_S) -> values.ModelInfo:
        with typed_errors():
            message = self._models.GetModelInfo(pb.GetModelInfoRequest(), timeout=timeout_s)
        return values.model_info_from(message)

    def server_status(self, *, timeout_s: float = INFO_TIMEOUT_S) -> values.ServerStatus:
        with typed_errors():
            message = self._models.GetServerStatus(pb.GetServerStatusRequest(), timeout=timeout_s)
        return values.server_status_from(message)

    def policy(self, *, timeout_s: float = INFO_TIMEOUT_S) -> PolicyState:
        """The scheduling policy in force, and what tenants got."""
        with typed_errors():
            answer = self._admin.GetPolicy(admin_pb2.GetPolicyRequest(), timeout=timeout_s)
        return policies.state_from(answer.state)

    def set_policy(
        self,
        name: str,
        options: Mapping[str, str] | None = None,
        *,
        timeout_s: float = INFO_TIMEOUT_S,
    ) -> PolicyState:
        """Changes the scheduling policy while the server runs; no request is lost.

        Raises InvalidRequest if there is no such policy, or not with these options.
        """
        request = admin_pb2.SetPolicyRequest(name=name, options=options)
        with typed_errors():
            answer = self._admin.SetPolicy(request, timeout=timeout_s)
        return policies.state_from(answer.state)

    def close(self) -> None:
        """Ends the connection; streams that still run are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
