"""Generate through a real port and a real client: streams that go well."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
import pytest

from frontend_svc import generation
from frontend_svc.preparation import Prepared, prepare
from frontend_svc.settings import Settings
from svc_wire.frontend_link import PROTOCOL_VERSION, Attached, Submit
from svc_wire.ids import FinishReason
from tests.support.fake_scheduler import EOS, MODEL, Answer, echo
from tests.support.frontend import (
    DEFAULTS,
    Running,
    in_loop,
    next_message,
    receive,
    running,
    until,
)
from tests.support.tmpfs import private_dir
from twostroke.v1 import generation_pb2 as pb


@asynccontextmanager
async def served(answer: Answer = echo, settings: Settings = DEFAULTS) -> AsyncIterator[Running]:
    with private_dir() as run_dir:
        async with running(run_dir, answer, settings=settings) as it:
            yield it


def by_hand(submit: Submit) -> None:
    """The test sends the tokens itself."""


@in_loop
async def test_text_in_text_out() -> None:
    async with served() as it:
        got = await receive(it.generate(pb.GenerateRequest(text="héllo", request_id="mine")))
        assert got.text == "héllo"
        assert bytes(got.token_ids) == "héllo".encode()
        assert got.finish.reason == pb.FINISH_REASON_LENGTH
        assert got.finish.WhichOneof("matched") is None
        assert got.messages[0].prompt == pb.PromptInfo(token_count=6, request_id="mine")


@in_loop
async def test_log_probabilities_come_with_the_tokens() -> None:
    async with served() as it:
        request = pb.GenerateRequest(text="hé", output=pb.OutputOptions(logprobs=1))
        got = await receive(it.generate(request))
        told = [entry for message in got.messages for entry in message.logprobs]
        assert [entry.chosen.token_id for entry in told] == [104, 0xC3, 0xA9]
        assert told[0] == pb.TokenLogprobs(
            chosen=pb.Logprob(token_id=104, text="h", logprob=-52),
            top=[pb.Logprob(token_id=105, text="i", logprob=-52.5)],
        )
        assert told[1].chosen.text == "\ufffd", "half a character"
        for message in got.messages:
            assert len(message.logprobs) == len(message.token_ids)
        got = await receive(it.generate(pb.GenerateRequest(text="h")))
        assert not any(message.logprobs for message in got.messages)
        request.output.logprobs = 0
        got = await receive(it.generate(request))
        told = [entry for message in got.messages for entry in message.logprobs]
        assert [len(entry.top) for entry in told] == [0, 0, 0]


@in_loop
async def test_what_the_last_message_tells() -> None:
    async with served() as it:
        got = await receive(it.generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, EOS]))))
        assert got.finish.reason == pb.FINISH_REASON_STOP
        assert got.finish.token_id == got.token_ids[-1] == EOS
        assert got.finish.usage == pb.Usage(
            prompt_tokens=2, cached_tokens=1, output_tokens=2, preemptions=2
        )
        timings = got.finish.timings
        assert 3 <= timings.queued_ms <= timings.first_token_ms + 3
        assert 0 < timings.first_token_ms <= timings.total_ms < 20_000
        assert timings.executor_busy_share == 0.75


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("token_ids", [True, False])
@in_loop
async def test_only_what_is_asked_for_is_sent(text: bool, token_ids: bool) -> None:
    async with served() as it:
        output = pb.OutputOptions(text=text, token_ids=token_ids)
        got = await receive(it.generate(pb.GenerateRequest(text="abc", output=output)))
        assert got.text == ("abc" if text else "")
        assert got.token_ids == (list(b"abc") if token_ids else [])
        assert got.finish.usage.output_tokens == 3
        assert got.messages[0].HasField("prompt")


@in_loop
async def test_special_tokens_are_left_out_of_the_text_unless_kept() -> None:
    async with served(lambda _: [97, EOS, 98]) as it:
        for skip, text in ((None, "ab"), (True, "ab"), (False, "ab")):
            output = pb.OutputOptions(skip_special_tokens=skip)
            stop = pb.StopCriteria(ignore_eos=True)
            request = pb.GenerateRequest(text="x", output=output, stop=stop)
            got = await receive(it.generate(request))
            assert (got.text, got.token_ids) == (text, [97, EOS, 98])


@pytest.mark.parametrize("include", [True, False])
@in_loop
async def test_a_stop_string_ends_the_stream_well(include: bool) -> None:
    async with served(by_hand) as it:
        stop = pb.StopCriteria(strings=["END", "x"], include_stop_string=include)
        call = it.generate(pb.GenerateRequest(text="p", stop=stop))
        [key] = await it.scheduler.submitted()
        await it.scheduler.tokens(key, b"one E")
        first = await next_message(call)
        assert (first.text, bytes(first.token_ids)) == ("one ", b"one E")
        await it.scheduler.tokens(key, b"NDless")
        got = await receive(call, first)
        assert got.text == ("one END" if include else "one ")
        assert bytes(got.token_ids) == b"one END", "up to the one that completed the match"
        assert (got.finish.reason, got.finish.text) == (pb.FINISH_REASON_STOP, "END")
        assert got.finish.usage.output_tokens == 7
        assert got.finish.usage.cached_tokens == 1, "the scheduler's account is waited for"
        assert it.scheduler.aborts == {key: FinishReason.STOP_STRING}


@in_loop
async def test_a_stop_string_ends_the_stream_even_if_the_scheduler_says_nothing() -> None:
    async with served(by_hand) as it:
        stop = pb.StopCriteria(strings=["!"])
        call = it.generate(pb.GenerateRequest(text="p", stop=stop))
        [key] = await it.scheduler.submitted()
        it.scheduler.is_silent = True
        await it.scheduler.tokens(key, b"a!")
        got = await receive(call)
        assert (got.text, got.finish.text) == ("a", "!")
        it.scheduler.is_silent = False


@in_loop
async def test_nothing_is_sent_before_the_first_token() -> None:
    """So that a failure until then is a status alone, which may be retried."""
    async with served(by_hand) as it:
        call = it.generate(pb.GenerateRequest(text="p"))
        [key] = await it.scheduler.submitted()
        headers = asyncio.create_task(call.initial_metadata())
        done, _ = await asyncio.wait([headers], timeout=0.1)
        assert not done
        await it.scheduler.tokens(key, b"a", FinishReason.LENGTH)
        assert dict(await headers)["x-request-id"]
        await receive(call)


@in_loop
async def test_tokens_that_pile_up_go_out_together() -> None:
    async with served(by_hand) as it:
        call = it.generate(pb.GenerateRequest(text="p"))
        [key] = await it.scheduler.submitted()
        await it.scheduler.tokens(key, b"x" * 1000)
        await it.scheduler.tokens(key, b"y" * 1000, FinishReason.LENGTH)
        got = await receive(call)
        assert got.text == "x" * 1000 + "y" * 1000
        assert len(got.messages) <= 2


@in_loop
async def test_streams_do_not_mix() -> None:
    async with served(lambda submit: list(submit.prompt[::4] * 3)[: submit.max_tokens]) as it:

        async def one(index: int) -> None:
            text = f"<{index}>"
            got = await receive(it.generate(pb.GenerateRequest(text=text)))
            assert got.text == text * 3

        await asyncio.gather(*map(one, range(200)))


# -- the request's name ----------------------------------------------------------------------------


@in_loop
async def test_the_scheduler_knows_the_deadline() -> None:
    async with served() as it:
        await receive(it.generate(pb.GenerateRequest(text="x"), timeout=3600))
        [submit] = it.scheduler.submits.values()
        assert 3000 < submit.deadline_ns / 1e9 - time.monotonic() < 3700


@pytest.mark.parametrize("patience_s", [None, generation.DEADLINE_MAX_S + 100])
@in_loop
async def test_a_deadline_that_is_ages_away_is_none(patience_s: float | None) -> None:
    async with served() as it:
        await receive(it.generate(pb.GenerateRequest(text="x"), timeout=patience_s))
        [submit] = it.scheduler.submits.values()
        assert submit.deadline_ns == 0


@in_loop
async def test_the_request_keeps_its_name() -> None:
    async with served() as it:
        for request, metadata, name in (
            (pb.GenerateRequest(text="x", request_id="mine"), (), "mine"),
            (pb.GenerateRequest(text="x"), (("x-request-id", "proxy's"),), "proxy's"),
            (pb.GenerateRequest(text="x", request_id="m"), (("x-request-id", "p"),), "m"),
        ):
            got = await receive(it.generation.Generate(request, metadata=metadata))
            assert (got.request_id, got.messages[0].prompt.request_id) == (name, name)
        names = {
            (await receive(it.generate(pb.GenerateRequest(text="x")))).request_id for _ in range(3)
        }
        assert len(names) == 3


@in_loop
async def test_a_name_that_is_no_header_is_escaped_in_the_header() -> None:
    async with served() as it:
        for name, header in (
            ("é\n", "%C3%A9%0A"),
            ("a b", "a%20b"),
            ("50%", "50%25"),
            ("\x00" * 128, "%00" * 128),
        ):
            got = await receive(it.generate(pb.GenerateRequest(text="x", request_id=name)))
            assert got.request_id == header
            assert got.messages[0].prompt.request_id == name


@in_loop
async def test_a_prompt_that_was_prepared_for_another_model_is_not_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(by_hand) as it:
        prepared, go_on = threading.Event(), threading.Event()

        def slowly(*arguments: Any) -> Prepared:
            found = prepare(*arguments)
            prepared.set()
            go_on.wait(10)
            return found

        monkeypatch.setattr(generation, "prepare", slowly)
        call = it.generate(pb.GenerateRequest(text="x"))
        await until(prepared.is_set)
        other = Attached(PROTOCOL_VERSION, msgspec.structs.replace(MODEL, name="other"), 300, 100)
        await it.scheduler.broadcast(other)
        await until(lambda: getattr(it.frontend.backend.model, "info", MODEL).name == "other")
        go_on.set()
        got = await receive(call)
        assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "EXECUTOR_LOST")
        assert not it.scheduler.submits
