"""Bad requests, through a real port: one clear status each, and nobody else notices."""

import asyncio
import itertools
from pathlib import Path

import grpc
import pytest

from frontend_svc import generation
from frontend_svc.settings import Settings
from svc_wire.ids import FinishReason, RejectReason
from tests.support.fake_scheduler import echo, status
from tests.support.frontend import (
    begun,
    frontend_alone,
    generation_stub,
    in_loop,
    receive,
    running,
    serving,
)
from twostroke.v1 import generation_pb2 as pb

GENERATE = "/twostroke.v1.GenerationService/Generate"

# What a client library would not let through: bytes on the wire.
BAD_BYTES = [
    b"\x1a\x02\xff\xfe",  # text that is not UTF-8
    b"\x1a\x03\xed\xa0\x80",  # a lone surrogate
    b"\x1a\xff\xff\xff\xff\x0f",  # a length beyond the end
    b"\xff\xff\xff",
    b"\x0b",  # a group that does not end
]

BAD_REQUESTS = [
    pb.GenerateRequest(),
    pb.GenerateRequest(text="x", model="é" * 100_000),
    pb.GenerateRequest(text="x" * 10_000_000),
    pb.GenerateRequest(text="x", sampling=pb.SamplingParams(temperature=float("nan"))),
    pb.GenerateRequest(text="x", stop=pb.StopCriteria(strings=[""] * 100_000)),
    pb.GenerateRequest(token_ids=pb.TokenIds(ids=[2**32 - 1] * 1_000_000)),
    pb.GenerateRequest(text="x", stop=pb.StopCriteria(max_tokens=2**32 - 1)),
    pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage()] * 100_000)),
]


@in_loop
async def test_a_corpus_of_bad_requests_disturbs_nobody(run_dir: Path) -> None:
    async with running(run_dir) as it:
        raw = it.channel.unary_stream(
            GENERATE,
            request_serializer=bytes,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        bad = [request.SerializeToString() for request in BAD_REQUESTS] + BAD_BYTES

        async def bad_one(data: bytes) -> None:
            got = await receive(raw(data, timeout=20))
            assert got.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
            assert got.reason in ("INVALID_FIELD", "TOO_LONG")
            assert 0 < len(got.details) < 1000

        async def neighbour(text: str) -> None:
            got = await receive(it.generate(pb.GenerateRequest(text=text)))
            assert got.text == text

        neighbours = (neighbour(f"neighbour {index}") for index in itertools.count())
        await asyncio.gather(
            *itertools.chain.from_iterable((bad_one(data), next(neighbours)) for data in bad * 3)
        )
        assert not it.scheduler.live
        assert not it.scheduler.aborts
        neighbours.close()


@in_loop
async def test_an_error_names_the_request_and_the_field(run_dir: Path) -> None:
    async with running(run_dir) as it:
        sampling = pb.SamplingParams(top_p=2)
        request = pb.GenerateRequest(text="x", request_id="mine", sampling=sampling)
        got = await receive(it.generate(request))
        assert got.code is grpc.StatusCode.INVALID_ARGUMENT
        assert (got.reason, got.fields) == ("INVALID_FIELD", ["sampling.top_p"])
        assert got.request_id == "mine"


@in_loop
async def test_a_message_over_the_limit_is_refused_by_grpc(run_dir: Path) -> None:
    async with running(run_dir, settings=Settings(message_bytes_max=2048)) as it:
        got = await receive(it.generate(pb.GenerateRequest(text="x" * 3000)))
        assert got.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await receive(it.generate(pb.GenerateRequest(text="x")))).text == "x"


@pytest.mark.parametrize(
    ("reason", "code", "told", "retry"),
    [
        (RejectReason.QUEUE_FULL, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", True),
        (RejectReason.TOO_LONG, grpc.StatusCode.INVALID_ARGUMENT, "TOO_LONG", False),
        (RejectReason.NO_EXECUTOR, grpc.StatusCode.UNAVAILABLE, "NOT_READY", True),
    ],
)
@in_loop
async def test_a_rejection_by_the_scheduler_is_passed_on(
    run_dir: Path, reason: RejectReason, code: grpc.StatusCode, told: str, retry: bool
) -> None:
    async with running(run_dir, lambda _: reason) as it:
        got = await receive(it.generate(pb.GenerateRequest(text="x")))
        assert (got.code, got.reason, got.messages) == (code, told, [])
        assert (got.retry_s is not None) is retry
        assert not it.scheduler.aborts


@in_loop
async def test_more_streams_than_allowed_are_refused(run_dir: Path) -> None:
    async with running(run_dir, lambda _: None, settings=Settings(streams_max=2)) as it:
        calls = [it.generate(pb.GenerateRequest(text="x")) for _ in range(2)]
        keys = await it.scheduler.submitted(2)
        got = await receive(it.generate(pb.GenerateRequest(text="x")))
        assert got.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (got.reason, got.retry_s) == ("QUEUE_FULL", 1.0)
        for key in keys:
            await it.scheduler.tokens(key, b"y", FinishReason.LENGTH)
        assert [(await receive(call)).text for call in calls] == ["y", "y"]
        it.scheduler.answer = echo
        assert (await receive(it.generate(pb.GenerateRequest(text="x")))).text == "x"


@in_loop
async def test_an_execution_that_failed_is_told(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, key):
        await it.scheduler.outputs(key, [0], b"a", FinishReason.ERROR, "the logits are NaN")
        got = await receive(call)
        assert (got.code, got.reason) == (grpc.StatusCode.INTERNAL, "EXECUTION_FAILED")
        assert got.details == "the logits are NaN"
        assert got.text == "a", "what was computed is delivered"


@in_loop
async def test_a_gap_in_the_tokens_ends_one_stream_alone(run_dir: Path) -> None:
    async with running(run_dir, lambda _: None) as it:
        broken, sound = (it.generate(pb.GenerateRequest(text="x")) for _ in range(2))
        one, other = await it.scheduler.submitted(2)
        await it.scheduler.outputs(one, [1], b"a")
        await it.scheduler.tokens(other, b"b", FinishReason.LENGTH)
        results = [await receive(call) for call in (broken, sound)]
        results.sort(key=lambda got: got.text)
        assert results[0].code is grpc.StatusCode.INTERNAL
        assert results[1].text == "b"
        await it.scheduler.until(lambda: one in it.scheduler.aborts)


@in_loop
async def test_an_exception_leaks_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a secret")

    async with running(run_dir) as it:
        with monkeypatch.context() as patch:
            patch.setattr(generation, "prepare", fail)
            got = await receive(it.generate(pb.GenerateRequest(text="x")))
        assert got.code is grpc.StatusCode.INTERNAL
        assert "secret" not in got.details
        reference = got.details.split()[-1]
        assert (await receive(it.generate(pb.GenerateRequest(text="x")))).text == "x"
    log = capsys.readouterr()
    text = log.out + log.err
    assert reference in text
    assert "a secret" in text


# -- before and after ------------------------------------------------------------------------------


@in_loop
async def test_before_the_scheduler_is_there_everything_says_so(run_dir: Path) -> None:
    async with (
        frontend_alone(run_dir) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        got = await receive(generation_stub(channel).Generate(pb.GenerateRequest(text="x")))
        assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
        assert got.retry_s == 1.0
        assert "scheduler" in got.details


@in_loop
async def test_while_the_executor_is_away_requests_are_refused(run_dir: Path) -> None:
    async with running(run_dir) as it:
        await it.scheduler.tell(status(ready=False, reason="no executor is ready"))
        await serving(it.models, ready=False)
        got = await receive(it.generate(pb.GenerateRequest(text="x")))
        assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
        assert "no executor is ready" in got.details
        await it.scheduler.tell(status())
        await serving(it.models)
        assert (await receive(it.generate(pb.GenerateRequest(text="x")))).text == "x"
