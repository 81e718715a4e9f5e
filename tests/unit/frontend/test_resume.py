"""An answer is gone on with by a front end that did not begin it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

from frontend_svc.errors import Failure
from frontend_svc.resume import RESUME_HEADER, ResumeToken
from frontend_svc.served_model import ServedModel, load_model
from svc_wire.capacity import ModelInfo
from svc_wire.frontend_link import STREAM_BYTES, Attached, Submit
from svc_wire.ids import FinishReason
from tests.support.fake_scheduler import EOS
from tests.support.frontend import (
    NOON,
    Received,
    Running,
    in_loop,
    next_message,
    receive,
    running,
)
from tests.support.tmpfs import private_dir
from twostroke.v1 import generation_pb2 as pb


def model(name: str = "fake") -> ServedModel:
    info = ModelInfo(name=name, path="", eos_ids=(EOS,), dtype="none", device="none")
    return load_model(Attached(1, info, 300, 100), None, lambda: NOON)


def by_hand(submit: Submit) -> None:
    """The test sends the tokens itself."""


@asynccontextmanager
async def served() -> AsyncIterator[Running]:
    with private_dir() as run_dir:
        async with running(run_dir, by_hand) as it:
            yield it


@dataclass(frozen=True)
class Broken:
    """An answer of which only a part came."""

    token: str
    text: str
    token_ids: list[int]
    submit: Submit


async def break_after(it: Running, request: pb.GenerateRequest, output: bytes) -> Broken:
    """Has the first tokens come, as `output`, and cancels the call."""
    call = it.generate(request)
    [key] = await it.scheduler.submitted()
    await it.scheduler.tokens(key, output)
    message = await next_message(call)
    token = dict(await call.initial_metadata() or ())[RESUME_HEADER]
    call.cancel()
    await it.scheduler.until(lambda: key not in it.scheduler.live)
    assert isinstance(token, str)
    return Broken(token, message.text, [*message.token_ids], it.scheduler.submits[key])


def resuming(request: pb.GenerateRequest, token: str, ids: Sequence[int]) -> pb.GenerateRequest:
    resumed = pb.GenerateRequest()
    resumed.CopyFrom(request)
    resumed.resume.CopyFrom(pb.Resume(token=token, token_ids=ids))
    return resumed


async def resume(
    it: Running,
    request: pb.GenerateRequest,
    broken: Broken,
    output: bytes,
    end: FinishReason = FinishReason.LENGTH,
) -> tuple[Received, Submit]:
    """Resumes it, has the rest come, and returns that and what was submitted."""
    call = it.generate(resuming(request, broken.token, broken.token_ids))
    [key] = await it.scheduler.submitted()
    await it.scheduler.tokens(key, output, end)
    return await receive(call, count=len(broken.token_ids)), it.scheduler.submits[key]


async def refused(it: Running, request: pb.GenerateRequest) -> Received:
    got = await receive(it.generate(request))
    assert not got.messages
    return got


@in_loop
async def test_the_rest_comes_from_the_next_token_on() -> None:
    async with served() as it:
        request = pb.GenerateRequest(text="hi")
        begun = "naï".encode()[:3], "naï".encode()[3:] + b"ve"
        broken = await break_after(it, request, begun[0])
        assert (broken.text, broken.token_ids) == ("na", list(begun[0]))
        rest, submit = await resume(it, request, broken, begun[1])
        assert broken.text + rest.text == "naïve", "the half character was kept"
        assert rest.token_ids == list(begun[1])
        assert rest.messages[0].first_index == 3
        assert rest.messages[0].prompt.token_count == 2
        assert rest.finish.usage.output_tokens == 6
        assert submit.output == broken.submit.output + bytes(
            byte for id_ in begun[0] for byte in id_.to_bytes(4, "little")
        )
        assert submit.sampling == broken.submit.sampling, "the seed that was drawn, too"
        assert submit.stream == broken.submit.stream
        assert not submit.was_accepted, "only the scheduler knows whether it was"


@in_loop
async def test_a_stop_string_is_found_across_the_break() -> None:
    async with served() as it:
        request = pb.GenerateRequest(text="hi", stop=pb.StopCriteria(strings=["stop"]))
        broken = await break_after(it, request, b"a st")
        assert broken.text == "a "
        rest, _ = await resume(it, request, broken, b"op and")
        assert (rest.text, rest.finish.text, rest.token_ids) == ("", "stop", list(b"op"))


@in_loop
async def test_an_answer_that_lacks_only_its_end_gets_it_at_once() -> None:
    async with served() as it:
        request = pb.GenerateRequest(text="hi", stop=pb.StopCriteria(strings=["stop"]))
        broken = await break_after(it, request, b"a st")
        got = await receive(it.generate(resuming(request, broken.token, b"a stop")), count=6)
        assert (got.text, got.token_ids, got.finish.text) == ("", [], "stop")
        assert len(it.scheduler.submits) == 1, "the scheduler has nothing to do with it"


@in_loop
async def test_without_token_ids_there_is_no_token() -> None:
    async with served() as it:
        output = pb.OutputOptions(token_ids=False)
        call = it.generate(pb.GenerateRequest(text="hi", output=output))
        [key] = await it.scheduler.submitted()
        await it.scheduler.tokens(key, b"ab")
        await next_message(call)
        assert RESUME_HEADER not in dict(await call.initial_metadata() or ())
        call.cancel()


@in_loop
async def test_what_cannot_be_the_output_is_refused() -> None:
    async with served() as it:
        stop = pb.StopCriteria(strings=["b"], token_ids=[7], max_tokens=5)
        request = pb.GenerateRequest(text="hi", stop=stop)
        token = ResumeToken.draw(model()).text()
        for ids, why in (
            (b"12345", "all of the 5 tokens"),
            (b"abc", "past a stop string, at index 2"),
            ([8, 7], "end with one"),
            ([300], r"token id 300 is not in [0:300)"),
        ):
            got = await refused(it, resuming(request, token, ids))
            assert (got.reason, got.fields) == ("INVALID_FIELD", ["resume.token_ids"])
            assert why in got.details
        request.output.token_ids = False
        got = await refused(it, resuming(request, token, [1]))
        assert got.fields == ["output.token_ids"]


@in_loop
async def test_another_model_goes_on_with_nothing() -> None:
    async with served() as it:
        token = ResumeToken.draw(model("another")).text()
        got = await refused(it, resuming(pb.GenerateRequest(text="hi"), token, [1]))
        assert (got.code, got.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CANNOT_RESUME")


# -- the token -------------------------------------------------------------------------------------


def test_a_token_is_read_as_it_was_written() -> None:
    served = model()
    token = ResumeToken.draw(served)
    assert ResumeToken.parse(token.text(), served) == token
    assert len(token.text()) == 44
    least = ResumeToken(-(2**63), served.mark, bytes(STREAM_BYTES))
    assert ResumeToken.parse(least.text(), served) == least


def test_no_two_tokens_are_alike() -> None:
    drawn = [ResumeToken.draw(model()) for _ in range(100)]
    assert len({token.stream for token in drawn}) == len({token.seed for token in drawn}) == 100


@pytest.mark.parametrize("text", ["", "x", "é", "A" * 44, "A" * 4096, "AA=", "🙂" * 11])
def test_what_is_no_token_is_the_callers_fault(text: str) -> None:
    with pytest.raises(Failure) as caught:
        ResumeToken.parse(text, model())
    assert [violation.field for violation in caught.value.violations] == ["resume.token"]
