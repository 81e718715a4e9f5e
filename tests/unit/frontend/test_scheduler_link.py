"""The scheduler comes late, dies, hangs, restarts, talks nonsense; streams go on all the same."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from msgspec.structs import replace

from frontend_svc import backend, scheduler_link
from frontend_svc.served_model import ServedModel, load_model
from frontend_svc.settings import Settings
from svc_wire.frontend_link import PROTOCOL_VERSION, Attached
from svc_wire.ids import FinishReason, RejectReason
from tests.support.fake_scheduler import MODEL, FakeScheduler, echo, status
from tests.support.frontend import (
    begun,
    in_loop,
    receive,
    running,
    serving,
    until,
)
from twostroke.v1 import generation_pb2 as pb

# A loss must be told within this, from the moment that it can be noticed.
TOLD_S = 2.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heart that beats fast, so that silence is noticed soon."""
    monkeypatch.setattr(scheduler_link, "BEAT_S", 0.1)


@in_loop
async def test_streams_go_on_with_the_next_scheduler(run_dir: Path) -> None:
    first = FakeScheduler(run_dir, lambda _: None)
    async with running(run_dir, scheduler=first) as it:
        calls = [it.generate(pb.GenerateRequest(text="x")) for _ in range(8)]
        keys = await first.submitted(8)
        for key in keys[:4]:
            await first.tokens(key, b"ab")
        await first.close()
        await serving(it.models, ready=False)
        got = await receive(it.generate(pb.GenerateRequest(text="x")))
        assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
        async with FakeScheduler(run_dir, lambda _: None) as second:
            assert await second.submitted(8) == keys, "in the order in which they came"
            for key in keys:
                before, now = first.submits[key], second.submits[key]
                output = np.array([*b"ab"] if key in keys[:4] else [], "<i4").tobytes()
                assert now == replace(before, output=output, was_accepted=True)
                await second.tokens(key, b"cd", FinishReason.LENGTH)
            results = [await receive(call) for call in calls]
            assert sorted(got.text for got in results) == ["abcd"] * 4 + ["cd"] * 4
            await serving(it.models)
            second.answer = echo
            assert (await receive(it.generate(pb.GenerateRequest(text="x")))).text == "x"


@in_loop
async def test_whoever_leaves_while_no_scheduler_is_there_is_not_resumed(run_dir: Path) -> None:
    first = FakeScheduler(run_dir, lambda _: None)
    async with running(run_dir, scheduler=first) as it:
        stays, leaves = (it.generate(pb.GenerateRequest(text=text)) for text in "ab")
        await first.submitted(2)
        await first.close()
        await serving(it.models, ready=False)
        leaves.cancel()
        await until(lambda: len(it.frontend.backend.live) == 1)
        async with FakeScheduler(run_dir) as second:
            assert (await receive(stays)).text == "a"
            assert len(second.submits) == 1


@in_loop
async def test_whoever_leaves_after_the_resumption_is_aborted(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, _):
        await it.scheduler.close()
        async with FakeScheduler(run_dir, lambda _: None) as second:
            [key] = await second.submitted()
            call.cancel()
            await second.until(lambda: second.aborts == {key: FinishReason.ABORT})


@in_loop
async def test_a_scheduler_that_stays_away_ends_its_streams(run_dir: Path) -> None:
    settings = Settings(outage_timeout_s=0.3)
    async with begun(run_dir, settings=settings) as (it, call, key):
        await it.scheduler.tokens(key, b"ab")
        await it.scheduler.close()
        async with asyncio.timeout(TOLD_S):
            got = await receive(call)
        assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "SCHEDULER_LOST")
        assert (got.text, got.retry_s is None) == ("ab", False)


@in_loop
async def test_a_resumption_that_is_rejected_ends_with_the_reason(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, _):
        await it.scheduler.close()
        async with FakeScheduler(run_dir, lambda _: RejectReason.TOO_LONG):
            got = await receive(call)
        assert (got.code, got.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "TOO_LONG")


@pytest.mark.usefixtures("quick")
@in_loop
async def test_a_scheduler_that_hangs_counts_as_lost_and_is_left(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, _):
        it.scheduler.is_silent = True
        async with asyncio.timeout(TOLD_S):
            await serving(it.models, ready=False)
        # It comes to itself, reads what lay in its socket, and serves.
        it.scheduler.answer = echo
        it.scheduler.is_silent = False
        assert (await receive(call)).text == "x"
        await serving(it.models)


@pytest.mark.usefixtures("quick")
@in_loop
async def test_a_scheduler_that_answers_is_not_left(run_dir: Path) -> None:
    async with running(run_dir) as it:
        await it.scheduler.until(lambda: it.scheduler.pings >= 10)
        assert it.scheduler.attaches == 1


@pytest.mark.usefixtures("quick")
@in_loop
async def test_a_scheduler_that_forgot_us_is_attached_anew(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, _):
        it.scheduler.answer = echo
        it.scheduler.forget()
        async with asyncio.timeout(TOLD_S):
            assert (await receive(call)).text == "x"
        assert it.scheduler.attaches == 2


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x91\xa7Unknown1"])
@in_loop
async def test_a_scheduler_that_talks_nonsense_is_left(run_dir: Path, data: bytes) -> None:
    async with begun(run_dir) as (it, call, _):
        it.scheduler.answer = echo
        await it.scheduler.send_raw(data)
        assert (await receive(call)).text == "x"
        assert it.scheduler.detaches == 1
        await serving(it.models)


@pytest.mark.usefixtures("quick")
@in_loop
async def test_a_scheduler_without_a_model_is_asked_until_it_has_one(run_dir: Path) -> None:
    fake = FakeScheduler(run_dir)
    known, fake.attached = fake.attached, None
    fake.status = status(ready=False, reason="no executor is ready")
    async with running(run_dir, scheduler=fake, ready=False) as it:
        await fake.until(lambda: fake.attaches >= 3)
        got = await receive(it.generate(pb.GenerateRequest(text="x")))
        assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
        fake.attached, fake.status = known, status()
        await serving(it.models)


@pytest.mark.usefixtures("quick")
@in_loop
async def test_another_version_of_the_protocol_is_not_served(
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake = FakeScheduler(run_dir)
    fake.attached = Attached(PROTOCOL_VERSION + 1, MODEL, 300, 100)
    async with running(run_dir, scheduler=fake, ready=False) as it:
        await fake.until(lambda: fake.attaches >= 2)
        await serving(it.models, ready=False)
    log = capsys.readouterr().out
    assert log.count(f"it speaks version {PROTOCOL_VERSION + 1}") == 1, "once, not at every try"


@in_loop
async def test_another_model_ends_the_streams_of_the_old_one(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, _):
        assert it.scheduler.attached is not None
        await it.scheduler.broadcast(it.scheduler.attached)
        other = Attached(PROTOCOL_VERSION, replace(MODEL, name="other"), 300, 50)
        await it.scheduler.broadcast(other)
        got = await receive(call)
        assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "EXECUTOR_LOST")
        await serving(it.models)
        info = await it.models.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.name, info.sequence_length_max) == ("other", 50)
        await it.scheduler.until(lambda: len(it.scheduler.aborts) == 1)


@in_loop
async def test_the_same_model_with_less_memory_goes_on(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, key):
        await it.scheduler.broadcast(Attached(PROTOCOL_VERSION, MODEL, 300, 50))
        await it.scheduler.tokens(key, b"a", FinishReason.LENGTH)
        assert (await receive(call)).text == "a"
        info = await it.models.GetModelInfo(pb.GetModelInfoRequest())
        assert info.sequence_length_max == 50


# -- the executor behind it ------------------------------------------------------------------------


@in_loop
async def test_streams_do_not_wait_long_for_an_executor_that_is_away(run_dir: Path) -> None:
    settings = Settings(outage_timeout_s=0.2)
    async with begun(run_dir, settings=settings) as (it, call, key):
        await it.scheduler.tell(status(ready=False, reason="no executor is ready"))
        got = await receive(call)
        assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "EXECUTOR_LOST")
        assert "no executor is ready" in got.details
        await it.scheduler.until(lambda: it.scheduler.aborts == {key: FinishReason.ABORT})


@in_loop
async def test_news_of_an_outage_do_not_prolong_it(run_dir: Path) -> None:
    async with begun(run_dir, Settings(outage_timeout_s=0.2)) as (it, call, _):
        for _ in range(10):
            await it.scheduler.tell(status(ready=False, reason="no executor is ready"))
            await asyncio.sleep(0.05)
        assert it.scheduler.aborts, "its stream has ended long ago"
        assert (await receive(call)).reason == "EXECUTOR_LOST"


@in_loop
async def test_an_executor_that_comes_back_in_time_is_no_loss(run_dir: Path) -> None:
    settings = Settings(outage_timeout_s=5.0)
    async with begun(run_dir, settings=settings) as (it, call, key):
        await it.scheduler.tell(status(ready=False, reason="no executor is ready"))
        await it.scheduler.tell(status())
        await it.scheduler.tokens(key, b"a", FinishReason.LENGTH)
        assert (await receive(call)).text == "a"


@in_loop
async def test_an_outage_that_is_over_ends_nothing_later(run_dir: Path) -> None:
    settings = Settings(outage_timeout_s=0.2)
    async with begun(run_dir, settings=settings) as (it, call, key):
        await it.scheduler.tell(status(ready=False, reason="no executor is ready"))
        await it.scheduler.tell(status())
        await asyncio.sleep(0.4)
        await it.scheduler.tokens(key, b"a", FinishReason.LENGTH)
        assert (await receive(call)).text == "a"


@in_loop
async def test_tokens_that_still_come_are_no_outage(run_dir: Path) -> None:
    """A scheduler that shuts down is not ready, but finishes what it has."""
    settings = Settings(outage_timeout_s=0.2)
    async with begun(run_dir, settings=settings) as (it, call, key):
        await it.scheduler.tell(status(ready=False, reason="shutting down"))
        for _ in range(10):
            await it.scheduler.tokens(key, b"a")
            await asyncio.sleep(0.05)
        await it.scheduler.tokens(key, b"b", FinishReason.LENGTH)
        assert (await receive(call)).text == "a" * 10 + "b"


@in_loop
async def test_a_loss_while_the_tokenizer_is_read_is_no_harm(
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> ServedModel:
        reading.set()
        go_on.wait(10)
        return load_model(*arguments)

    monkeypatch.setattr(backend, "load_model", slowly)
    first = FakeScheduler(run_dir)
    async with running(run_dir, scheduler=first, ready=False) as it:
        await until(reading.is_set)
        await first.close()
        async with FakeScheduler(run_dir):
            go_on.set()
            await serving(it.models)
            assert (await receive(it.generate(pb.GenerateRequest(text="x")))).text == "x"
