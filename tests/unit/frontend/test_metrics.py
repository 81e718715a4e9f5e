"""What a front end shows to Prometheus: all is counted once, and a scrape waits for nobody."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import grpc.aio
import pytest

from frontend_svc import metrics
from frontend_svc.metrics import Metrics, Page
from frontend_svc.server import Frontend
from frontend_svc.settings import Settings
from frontend_svc.tally import Histogram, Tally
from svc_shell.listening import AddressError
from svc_shell.presence import is_held
from svc_wire.ids import FinishReason
from svc_wire.rundir import RunDir
from tests.support.fake_scheduler import EOS, status
from tests.support.frontend import (
    DEFAULTS,
    NOON,
    Running,
    frontend_alone,
    in_loop,
    next_message,
    receive,
    running,
    until,
)
from tests.support.scrape import Scrape, families, free_port
from twostroke.v1 import generation_pb2 as pb

GENERATE = "/twostroke.v1.GenerationService/Generate"


def settings() -> Settings:
    return replace(DEFAULTS, metrics_port=free_port())


async def scraped(port: int) -> Scrape:
    return await asyncio.to_thread(Scrape, port)


async def wait_for(port: int, holds: Callable[[Scrape], bool]) -> Scrape:
    """Some ends are counted a moment after the client has learnt of them, and a port that changes
    hands is closed for a moment."""
    seen: Scrape | None = None
    for _ in range(500):
        with suppress(OSError):
            if holds(seen := await scraped(port)):
                return seen
        await asyncio.sleep(0.01)
    raise AssertionError(seen and seen.labelled("requests_ended_total"))


def ends(seen: Scrape) -> dict[tuple[str, str], float]:
    """Calls of Generate by code and reason."""
    return {
        (told["code"], told["reason"]): count
        for labels, count in seen.labelled("requests_ended_total").items()
        if (told := dict(labels))["method"] == "Generate"
    }


def request(*ids: int, max_tokens: int = 50) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids), stop=pb.StopCriteria(max_tokens=max_tokens)
    )


def unreadable(it: Running) -> "grpc.aio.UnaryStreamCall[bytes, pb.GenerateResponse]":
    method = cast(
        "grpc.aio.UnaryStreamMultiCallable[bytes, pb.GenerateResponse]",
        it.channel.unary_stream(GENERATE),
    )
    return method(b"\xff\xff")


@in_loop
async def test_every_call_is_counted_once_with_how_it_ended(run_dir: Path) -> None:
    asked = settings()
    async with running(run_dir, settings=asked) as it:
        await receive(it.generate(request(1, 2, 3)))
        await receive(it.generate(request(1, 2, 3, 4, EOS)))
        await receive(it.generate(request(*range(200))))  # too long
        await receive(it.generate(pb.GenerateRequest()))  # no prompt
        await receive(unreadable(it))
        it.scheduler.answer = lambda _: None
        with suppress(grpc.aio.AioRpcError):  # its deadline passes
            await it.generate(request(5), timeout=0.05).read()
        call = it.generate(request(6))
        await it.scheduler.until(lambda: len(it.scheduler.submits) == 4)
        call.cancel()
        seen = await wait_for(
            asked.metrics_port,
            lambda seen: sum(ends(seen).values()) == 7,
        )
        assert ends(seen) == {
            ("OK", ""): 2,
            ("INVALID_ARGUMENT", "TOO_LONG"): 1,
            ("INVALID_ARGUMENT", "INVALID_FIELD"): 2,
            ("DEADLINE_EXCEEDED", ""): 1,
            ("CANCELLED", ""): 1,
        }
        assert seen.value("requests_started_total", method="Generate") == 7
        assert seen.value("answers_total", reason="LENGTH") == 1
        assert seen.value("answers_total", reason="STOP") == 1
        assert seen.value("streams") == 0
        assert seen.value("prompt_tokens_total") == 8
        assert seen.value("cached_prompt_tokens_total") == 2, "as the fake scheduler says"
        assert seen.value("output_tokens_total") == 8
        for name in ("queued", "first_token", "token_interval", "stream_pause", "answer"):
            assert seen.value(f"{name}_seconds_count") == 2


async def one_slow_answer(it: Running, port: int) -> tuple[Scrape, Scrape]:
    """In its middle and at its end."""
    call = it.generate(request(1, 2))
    [key] = await it.scheduler.submitted()
    await it.scheduler.tokens(key, [7, 8])
    first = await next_message(call)
    middle = await scraped(port)
    await asyncio.sleep(0.2)
    await it.scheduler.tokens(key, [9], FinishReason.LENGTH)
    await receive(call, first)
    return middle, await scraped(port)


@in_loop
async def test_times_of_an_answer_are_in_seconds(run_dir: Path) -> None:
    asked = settings()
    async with running(run_dir, lambda _: None, settings=asked) as it:
        middle, end = await one_slow_answer(it, asked.metrics_port)
    assert middle.value("streams") == 1
    assert middle.value("first_token_seconds_count") == 1
    assert middle.value("answer_seconds_count") == 0
    assert 0.2 <= end.value("stream_pause_seconds_sum") < 10
    assert 0.1 <= end.value("token_interval_seconds_sum") < 5, "of two intervals, the mean"
    assert end.value("answer_seconds_sum") >= end.value("stream_pause_seconds_sum")
    assert 0.003 <= end.value("queued_seconds_sum") < 5, "3 ms at the fake scheduler"
    assert end.value("answer_seconds_bucket", le="+Inf") == 1
    assert end.value("answer_seconds_bucket", le="0.1") == 0


@in_loop
async def test_tokens_that_the_client_brought_are_not_counted_again(run_dir: Path) -> None:
    asked = settings()
    async with running(run_dir, lambda _: None, settings=asked) as it:
        call = it.generate(request(1, 2, max_tokens=4))
        [key] = await it.scheduler.submitted()
        await it.scheduler.tokens(key, [7, 8])
        await next_message(call)
        token = dict(await call.initial_metadata())["x-resume-token"]
        call.cancel()
        resumed = request(1, 2, max_tokens=4)
        resumed.resume.token, resumed.resume.token_ids[:] = str(token), [7, 8]
        again = it.generate(resumed)
        await it.scheduler.until(lambda: len(it.scheduler.submits) == 2)
        _, key = it.scheduler.submits
        await it.scheduler.tokens(key, [9, 10], FinishReason.LENGTH)
        await receive(again, count=2)
        seen = await wait_for(
            asked.metrics_port, lambda seen: seen.value("output_tokens_total") >= 4
        )
        assert seen.value("output_tokens_total") == 4
        assert seen.value("answers_total", reason="LENGTH") == 1


# -- the scheduler's condition ---------------------------------------------------------------------


@in_loop
async def test_what_the_scheduler_said_last_is_shown(run_dir: Path) -> None:
    asked = settings()
    async with running(run_dir, settings=asked) as it:
        await it.scheduler.tell(status(steps=99))
        seen = await wait_for(
            asked.metrics_port, lambda seen: seen.value("scheduler_steps_total") == 99
        )
    assert seen.value("ready") == 1
    assert seen.value("model_info", model="fake", dtype="none", device="none") == 1
    assert seen.value("scheduler_policy_info", policy="fake") == 1
    shown = {
        "depth": 1, "waiting": 2, "running": 3, "kv_blocks": 40, "kv_blocks_free": 30,
        "output_tokens_total": 7, "preemptions_total": 1, "swaps_out_total": 6,
        "swaps_in_total": 5,
        "policy_faults_total": 2,
        "epochs_lost_total": 9,
    }  # fmt: skip
    assert {name: seen.value(f"scheduler_{name}") for name in shown} == shown
    assert seen.value("executor_busy_ratio") == 0.5
    assert seen.value("executor_busy_seconds_total") == 4.5
    assert seen.value("step_lead_seconds_sum") == 0.24
    assert seen.value("step_gap_seconds_sum") == 0.0016
    assert seen.value("step_gap_seconds_count") == 80
    assert seen.value("step_gap_recent_max_seconds") == 0.00009


def is_blind(seen: Scrape) -> bool:
    return not seen.value("ready") and not any("scheduler" in name for name in seen.names)


@in_loop
async def test_a_dead_scheduler_leaves_the_rest_to_be_seen(run_dir: Path) -> None:
    asked = settings()
    async with running(run_dir, settings=asked) as it:
        await receive(it.generate(request(1, 2, 3)))
        await it.scheduler.close()
        seen = await wait_for(asked.metrics_port, is_blind)
        assert ends(seen) == {("OK", ""): 1}


@in_loop
async def test_a_scheduler_that_is_not_ready_is_shown_with_what_it_has(run_dir: Path) -> None:
    asked = settings()
    async with running(run_dir, settings=asked) as it:
        await it.scheduler.tell(status(ready=False, reason="no executor is ready"))
        seen = await wait_for(asked.metrics_port, lambda seen: not seen.value("ready"))
        assert seen.value("scheduler_waiting") == 2


@in_loop
async def test_old_news_of_the_scheduler_is_none(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where this front end's own loop hangs, so that nobody finds out that it is silent."""
    asked = settings()
    async with running(run_dir, settings=asked) as it:
        it.scheduler.is_silent = True
        monkeypatch.setattr(metrics, "STATUS_AGE_MAX_S", 0.0)
        assert is_blind(await scraped(asked.metrics_port))


@in_loop
async def test_a_scrape_is_answered_while_the_event_loop_hangs(run_dir: Path) -> None:
    asked = settings()
    async with running(run_dir, settings=asked):
        # Not awaited: nothing else runs on the loop meanwhile.
        assert Scrape(asked.metrics_port).value("ready") == 1


# -- the port --------------------------------------------------------------------------------------


@in_loop
async def test_a_port_in_use_is_told_before_anything_is_served(run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        asked = replace(DEFAULTS, port=0, metrics_port=other.getsockname()[1])
        with pytest.raises(AddressError, match=r"metrics on 127\.0\.0\.1:\d+: Address already"):
            await Frontend(RunDir(run_dir), asked, lambda: NOON).run()
        assert not (run_dir / "frontend.address").exists()


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 1), ("127.0.0.1", 65536)])
@in_loop
async def test_an_address_that_is_none(run_dir: Path, host: str, port: int) -> None:
    async with frontend_alone(run_dir) as (frontend, _):
        shown = Metrics(Tally(), frontend.backend)
        with pytest.raises(AddressError, match=f"{host}:{port}"):
            await shown.start(host, port)
        await shown.close()


@in_loop
async def test_further_front_ends_take_the_ports_after_it(run_dir: Path) -> None:
    port = free_port(3)
    asked = replace(DEFAULTS, metrics_port=port)
    async with (
        running(run_dir, settings=asked),
        frontend_alone(run_dir, replace(asked, name="frontend-3")),
    ):
        assert await wait_for(port, lambda seen: seen.value("ready") == 1)
        assert await wait_for(port + 2, lambda seen: seen.value("ready") == 1)


@in_loop
async def test_a_successor_has_the_port(run_dir: Path) -> None:
    asked = settings()
    async with running(run_dir, lambda _: None, settings=asked) as it:
        call = it.generate(request(1))
        [key] = await it.scheduler.submitted()
        it.frontend.hand_over()
        await until(lambda: not is_held(run_dir / "frontend.lock"))
        other = Frontend(RunDir(run_dir), replace(asked, port=0), lambda: NOON)
        ran = asyncio.create_task(other.run())
        seen = await wait_for(asked.metrics_port, lambda seen: seen.value("ready") == 1)
        assert ends(seen) == {}, "its own count, while the old one lets a stream finish"
        assert seen.value("streams") == 0
        await it.scheduler.tokens(key, [1], FinishReason.LENGTH)
        await receive(call)
        other.stop()
        await ran


@in_loop
async def test_who_connects_and_says_nothing_holds_up_nobody(
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert metrics._Handler.timeout == metrics.CLIENT_WAIT_S
    monkeypatch.setattr(metrics._Handler, "timeout", 0.3)
    asked = settings()
    async with running(run_dir, settings=asked):
        reader, writer = await asyncio.open_connection("127.0.0.1", asked.metrics_port)
        assert (await scraped(asked.metrics_port)).value("ready") == 1
        async with asyncio.timeout(5):
            assert await reader.read() == b"", "it is shown the door"
        writer.close()


@in_loop
async def test_without_a_port_nobody_listens(run_dir: Path) -> None:
    async with running(run_dir) as it:
        assert it.frontend._metrics._server is None


# -- the numbers -----------------------------------------------------------------------------------


def test_a_value_on_a_bound_belongs_to_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert (histogram.counts, histogram.sum) == ([2, 2, 1], 7.5)


@in_loop
async def test_names_follow_the_conventions(run_dir: Path) -> None:
    asked = settings()
    async with running(run_dir, settings=asked) as it:
        page = Page(Tally(), it.frontend.backend)
        for metric in page.collect():
            assert metric.name.startswith("twostroke_")
            assert not metric.name.endswith(("_ms", "_total", "_count", "_sum"))
            assert metric.documentation.endswith(".")
        shown = families(asked.metrics_port)
        assert {metric.name for metric in page.collect()} <= {
            name.removesuffix("_info") for name in shown
        }
        assert "process_resident_memory_bytes" in shown
