"""A whole front end in the test's own process, behind a real port, with a real gRPC client."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend_svc.server import Frontend
from frontend_svc.settings import Settings
from svc_wire.rundir import RunDir
from tests.support.fake_scheduler import Answer, FakeScheduler, echo
from twostroke.v1 import generation_pb2 as pb
from twostroke.v1 import generation_pb2_grpc as rpc

if TYPE_CHECKING:
    from twostroke.v1.generation_pb2_grpc import GenerationServiceAsyncStub, ModelServiceAsyncStub

TEST_S = 60.0
NOON = datetime(2026, 2, 3, 12, 0, tzinfo=UTC)

DEFAULTS = Settings(drain_timeout_s=5.0)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

Stream = grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Runs an async test, bounded in time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), TEST_S))

    return run


@dataclass(frozen=True, eq=False)
class Running:
    """A front end that runs, its scheduler, and a client of it."""

    frontend: Frontend
    scheduler: FakeScheduler
    address: str
    generation: "GenerationServiceAsyncStub"
    models: "ModelServiceAsyncStub"
    channel: grpc.aio.Channel

    def generate(self, request: pb.GenerateRequest, timeout: float | None = 20.0) -> Stream:
        return self.generation.Generate(request, timeout=timeout)


@asynccontextmanager
async def frontend_alone(
    run_dir: Path, settings: Settings = DEFAULTS
) -> AsyncIterator[tuple[Frontend, str]]:
    """A front end without a scheduler, and its address. Insists on a clean end."""
    frontend = Frontend(RunDir(run_dir), replace(settings, port=0), lambda: NOON)
    task = asyncio.create_task(frontend.run())
    try:
        yield frontend, await until(lambda: _address(run_dir))
    finally:
        frontend.stop()
        await task


@asynccontextmanager
async def running(
    run_dir: Path,
    answer: Answer = echo,
    *,
    scheduler: FakeScheduler | None = None,
    settings: Settings = DEFAULTS,
    ready: bool = True,
) -> AsyncIterator[Running]:
    """A front end that serves (or, not `ready`, still waits), with a fake scheduler behind it."""
    async with (
        scheduler or FakeScheduler(run_dir, answer) as fake,
        frontend_alone(run_dir, settings) as (frontend, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        models = cast("ModelServiceAsyncStub", rpc.ModelServiceStub(channel))
        generation = generation_stub(channel)
        await serving(models, ready=ready)
        yield Running(frontend, fake, address, generation, models, channel)


@asynccontextmanager
async def begun(
    run_dir: Path, settings: Settings = DEFAULTS
) -> AsyncIterator[tuple[Running, Stream, int]]:
    """As `running`, with one stream that has got nothing yet, and its request's key."""
    async with running(run_dir, lambda _: None, settings=settings) as it:
        call = it.generate(pb.GenerateRequest(text="x"))
        [key] = await it.scheduler.submitted()
        yield it, call, key


async def health_of(channel: grpc.aio.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    return cast("int", (await stub.Check(request, wait_for_ready=True)).status)


async def serving(models: "ModelServiceAsyncStub", *, ready: bool = True) -> None:
    """Waits until the front end says that it serves, or that it does not."""

    for _ in range(1000):
        status = await models.GetServerStatus(pb.GetServerStatusRequest(), wait_for_ready=True)
        if status.ready is ready:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not what was waited for: {status}")


async def until(found: Callable[[], T | None]) -> T:
    """Waits for something that nobody announces. Bounded."""
    for _ in range(2000):
        if result := found():
            return result
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


def _address(run_dir: Path) -> str | None:
    path = run_dir / "frontend.address"
    return path.read_text().strip() if path.exists() else None


@dataclass(frozen=True)
class Received:
    """All of a stream, or how it failed."""

    messages: list[pb.GenerateResponse]
    code: grpc.StatusCode
    details: str
    reason: str
    """Of google.rpc.ErrorInfo; empty without one."""
    fields: list[str]
    """Of google.rpc.BadRequest."""
    retry_s: float | None
    """Of google.rpc.RetryInfo."""
    request_id: str
    """Echoed in the initial metadata, or in ErrorInfo."""

    @property
    def text(self) -> str:
        return "".join(message.text for message in self.messages)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for message in self.messages for token_id in message.token_ids]

    @property
    def finish(self) -> pb.Finish:
        assert self.code is grpc.StatusCode.OK, (self.code, self.details)
        assert [message.HasField("finish") for message in self.messages] == [
            *[False] * (len(self.messages) - 1),
            True,
        ], "the finish is in the last message and in no other"
        return self.messages[-1].finish


def generation_stub(channel: grpc.aio.Channel) -> "GenerationServiceAsyncStub":
    return cast("GenerationServiceAsyncStub", rpc.GenerationServiceStub(channel))


async def next_message(
    call: "grpc.aio.UnaryStreamCall[R, pb.GenerateResponse]",
) -> pb.GenerateResponse:
    message = await call.read()
    assert isinstance(message, pb.GenerateResponse)
    return message


async def receive(
    call: "grpc.aio.UnaryStreamCall[R, pb.GenerateResponse]",
    *already: pb.GenerateResponse,
    count: int = 0,
) -> Received:
    """Reads a stream to its end and checks that its pieces are gapless, from index `count` on."""
    messages = [*already]
    with suppress(grpc.aio.AioRpcError):
        while isinstance(message := await call.read(), pb.GenerateResponse):
            messages.append(message)
    for message in messages:
        assert message.first_index == count or not message.token_ids
        count += len(message.token_ids)
    assert [message.HasField("prompt") for message in messages[1:]] == [False] * (
        len(messages) - 1 if messages else 0
    ), "the prompt's facts are in the first message and in no other"
    info, bad, retry = _details(await call.trailing_metadata())
    initial = dict(await call.initial_metadata() or ())
    return Received(
        messages,
        await call.code(),
        await call.details() or "",
        info.reason,
        [violation.field for violation in bad.field_violations],
        retry.retry_delay.ToNanoseconds() / 1e9 if retry.HasField("retry_delay") else None,
        str(initial.get("x-request-id", info.metadata.get("request_id", ""))),
    )


def _details(
    metadata: object,
) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo]:
    packed = dict(cast("Iterable[tuple[str, bytes]]", metadata or ()))
    status = status_pb2.Status.FromString(packed.get("grpc-status-details-bin", b""))
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        assert any([detail.Unpack(info), detail.Unpack(bad), detail.Unpack(retry)])
    return info, bad, retry
