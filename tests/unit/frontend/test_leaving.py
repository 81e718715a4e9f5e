"""Clients that go away, run out of time, or do not read: the request ends, and only that one."""

import asyncio
import struct
from pathlib import Path

import grpc
import grpc.aio
import pytest

from frontend_svc import boundary
from frontend_svc.settings import Settings
from svc_wire.ids import FinishReason
from tests.support.frontend import (
    Running,
    begun,
    generation_stub,
    in_loop,
    next_message,
    receive,
    running,
    until,
)
from twostroke.v1 import generation_pb2 as pb


def is_empty(it: Running) -> bool:
    """Nothing of any request is left in the front end."""
    backend = it.frontend.backend
    return len(backend.live) == 0


@in_loop
async def test_a_cancelled_call_is_aborted_at_once(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, key):
        await it.scheduler.tokens(key, b"a")
        await next_message(call)
        call.cancel()
        await it.scheduler.until(lambda: it.scheduler.aborts == {key: FinishReason.ABORT})
        await until(lambda: is_empty(it))


@in_loop
async def test_a_call_that_is_cancelled_before_its_first_token_is_aborted_too(
    run_dir: Path,
) -> None:
    async with begun(run_dir) as (it, call, key):
        call.cancel()
        await it.scheduler.until(lambda: it.scheduler.aborts == {key: FinishReason.ABORT})


@in_loop
async def test_a_deadline_ends_the_request(run_dir: Path) -> None:
    async with running(run_dir, lambda _: None) as it:
        call = it.generate(pb.GenerateRequest(text="x"), timeout=0.2)
        [key] = await it.scheduler.submitted()
        got = await receive(call)
        assert got.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await it.scheduler.until(lambda: it.scheduler.aborts == {key: FinishReason.DEADLINE})
        await until(lambda: is_empty(it))


@in_loop
async def test_a_client_that_dies_is_noticed(run_dir: Path) -> None:
    async with running(run_dir, lambda _: None) as it:
        channel = grpc.aio.insecure_channel(it.address)
        call = generation_stub(channel).Generate(pb.GenerateRequest(text="x"))
        [key] = await it.scheduler.submitted()
        await channel.close()
        await it.scheduler.until(lambda: key in it.scheduler.aborts)
        del call


@in_loop
async def test_a_thousand_cancels_leave_nothing_behind(run_dir: Path) -> None:
    """Cancelled at every stage: before the submission, after it, in the middle of the tokens."""
    async with running(run_dir, lambda _: None) as it:

        async def one(index: int) -> None:
            call = it.generate(pb.GenerateRequest(text=f"request {index}"))
            for _ in range(index % 7):
                await asyncio.sleep(0)
            if index % 3 == 0:
                await asyncio.sleep(0.01)
            call.cancel()

        for begin in range(0, 1000, 100):
            await asyncio.gather(*map(one, range(begin, begin + 100)))
        await until(lambda: is_empty(it))
        await it.scheduler.until(lambda: not it.scheduler.live)
        assert set(it.scheduler.aborts) == set(it.scheduler.submits)
        it.scheduler.answer = lambda _: b"fine"
        assert (await receive(it.generate(pb.GenerateRequest(text="x")))).text == "fine"


@in_loop
async def test_a_request_that_ended_is_not_aborted(run_dir: Path) -> None:
    async with running(run_dir) as it:
        for _ in range(20):
            await receive(it.generate(pb.GenerateRequest(text="hello")))
        await until(lambda: is_empty(it))
        assert it.scheduler.aborts == {}


# -- slow readers ----------------------------------------------------------------------------------

# Windows as small as HTTP/2 allows, so that a reader that sleeps is felt after some kilobytes.
SLOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]


@pytest.mark.parametrize("reads_in_the_end", [True, False])
@in_loop
async def test_a_slow_reader_hurts_itself_alone(
    run_dir: Path, reads_in_the_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "ABORT_WAIT_S", 0.1)
    settings = Settings(stream_buffer_tokens=500, drain_timeout_s=1)
    async with (
        running(run_dir, lambda _: None, settings=settings) as it,
        grpc.aio.insecure_channel(it.address, options=SLOW) as channel,
    ):
        slow = generation_stub(channel).Generate(pb.GenerateRequest(text="slow"))
        [slow_key] = await it.scheduler.submitted()
        quick = it.generate(pb.GenerateRequest(text="quick"))
        _, quick_key = await it.scheduler.submitted(2)
        sent = 0
        # Each message is several hundred bytes; the buffer overflows when the windows are full.
        while slow_key not in it.scheduler.aborts and sent < 2_000_000:
            await it.scheduler.tokens(slow_key, b"x" * 200)
            await it.scheduler.tokens(quick_key, b"y")
            assert (await next_message(quick)).text == "y", "the neighbour is not held up"
            sent += 200
        assert it.scheduler.aborts == {slow_key: FinishReason.ABORT}
        await until(lambda: len(it.frontend.backend.live) == 1)
        await it.scheduler.tokens(quick_key, b"z", FinishReason.LENGTH)
        assert (await next_message(quick)).HasField("finish")
        if reads_in_the_end:
            got = await receive(slow)
            assert got.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert got.reason == "SLOW_READER"
            assert 0 < len(got.token_ids) < sent, "what fitted the windows"


@in_loop
async def test_a_reader_that_is_only_slow_gets_everything(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, key):
        expected = struct.pack(">500H", *range(500))
        for start in range(0, 1000, 10):
            await it.scheduler.tokens(key, expected[start : start + 10])
        await it.scheduler.tokens(key, b"", FinishReason.LENGTH)
        got = await receive(call)
        assert bytes(got.token_ids) == expected
        assert got.text == expected.decode("utf-8", "replace")
