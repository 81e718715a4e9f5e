"""A live request between scheduler and client: coalescing, gaplessness, one end."""

import asyncio
import struct
from collections.abc import Sequence

import grpc
import msgspec
import numpy as np
import pytest

from frontend_svc import errors, streams
from frontend_svc.errors import Failure
from frontend_svc.stop_strings import StopStrings
from frontend_svc.streams import Ending, LiveRequest, LiveRequests, Piece
from frontend_svc.text_stream import TextStream
from frontend_svc.tokenizer import ByteTokenizer
from svc_wire.frontend_link import Outputs, Rejected, Submit
from svc_wire.ids import FinishReason, RejectReason
from tests.support.fake_scheduler import finished, logprobs_of
from tests.support.frontend import in_loop

KEY = 7


class Aborts(dict[int, FinishReason]):
    """What the scheduler was told."""

    def send(self, key: int, reason: FinishReason) -> None:
        assert key not in self, "aborted twice"
        self[key] = reason


def live_request(
    *stops: str,
    key: int = KEY,
    text: bool = True,
    ids: bool = True,
    logprobs: int | None = None,
    buffer_tokens: int = 100,
) -> tuple[LiveRequest, Aborts]:
    detokenizer = ByteTokenizer().detokenizer(skip_special_tokens=True)
    compiled = StopStrings(stops) if stops else None
    live = LiveRequest(
        Submit(key, b"", 100, logprobs=logprobs),
        TextStream(detokenizer, compiled, include_match=False) if text or stops else None,
        wants_text=text,
        wants_token_ids=ids,
        buffer_tokens=buffer_tokens,
    )
    aborts = Aborts()
    live.submitted(aborts.send)
    return live, aborts


def commit(live: LiveRequest, text: str | bytes) -> None:
    for token_id in text.encode() if isinstance(text, str) else text:
        live.commit(len(live.committed), token_id, logprobs_of(live.submit, token_id))


def end(live: LiveRequest, reason: FinishReason = FinishReason.LENGTH) -> None:
    live.finish(finished(live.key, reason, output_tokens=len(live.committed)))


async def failure_of(live: LiveRequest) -> Failure:
    with pytest.raises(Failure) as caught:
        await live.take()
    return caught.value


@in_loop
async def test_what_came_since_the_last_take_is_one_piece() -> None:
    live, aborts = live_request()
    commit(live, "a")
    assert await live.take() == Piece(0, [97], "a", None)
    commit(live, "bcd")
    assert await live.take() == Piece(1, [98, 99, 100], "bcd", None)
    commit(live, "e")
    end(live)
    piece = await live.take()
    assert (piece.first_index, piece.text) == (4, "e")
    assert piece.ending == Ending(None, finished(KEY, FinishReason.LENGTH, output_tokens=5))
    assert live.committed.tolist() == list(b"abcde")
    assert not aborts


@in_loop
async def test_log_probabilities_stay_with_their_tokens() -> None:
    """A slow reader gets those of all tokens at once, each once."""
    live, _ = live_request(logprobs=1)
    told = {token: logprobs_of(live.submit, token) for token in b"abcde"}
    commit(live, "a")
    assert await live.take() == Piece(0, [97], "a", None, (told[97],))
    commit(live, "bcd")
    live.detach()  # the scheduler is gone; what it brought is still sent, and only that
    assert live.resumption.logprobs == 1
    assert live.resumption.output == live.committed.tobytes()
    commit(live, "e")
    piece = await live.take()
    assert piece.first_index == 1
    assert piece.logprobs == tuple(told[token] for token in b"bcde")
    end(live)
    assert (await live.take()).logprobs == ()


@in_loop
async def test_who_wants_log_probabilities_alone_is_woken_for_them() -> None:
    live, aborts = live_request(text=False, ids=False, logprobs=0, buffer_tokens=3)
    taking = asyncio.create_task(live.take())
    await asyncio.sleep(0)
    commit(live, "a")
    assert await taking == Piece(0, [], "", None, ([(97, -48.5)],))
    commit(live, "bcde")
    with pytest.raises(asyncio.CancelledError):  # too slow
        await asyncio.sleep(0)
    assert live.overflow is not None
    assert aborts


@in_loop
@pytest.mark.parametrize(("asked", "told"), [(None, 1), (0, 0), (2, 2), (0, 2)])
async def test_missing_log_probabilities_end_it_as_our_mistake(
    asked: int | None, told: int
) -> None:
    live, _ = live_request(logprobs=asked)
    live.commit(0, 97, [(97, -1.0)] * told)
    assert (await failure_of(live)).code is grpc.StatusCode.INTERNAL


@in_loop
async def test_take_waits_for_something_to_send() -> None:
    live, _ = live_request(ids=False)
    taking = asyncio.create_task(live.take())
    commit(live, "é".encode()[:1])
    await asyncio.sleep(0)
    assert not taking.done(), "half a character is nothing to send"
    commit(live, "é".encode()[1:])
    assert await taking == Piece(0, [], "é", None)


@in_loop
async def test_only_what_is_wanted_is_sent() -> None:
    live, _ = live_request(text=False)
    commit(live, "ab")
    assert await live.take() == Piece(0, [97, 98], "", None)
    live, _ = live_request(text=False, ids=False)
    commit(live, "ab")
    end(live)
    piece = await live.take()
    assert (piece.first_index, piece.token_ids, piece.text) == (0, [], "")
    assert piece.ending is not None


@in_loop
async def test_the_end_brings_the_rest_of_the_text() -> None:
    live, _ = live_request("stop")
    commit(live, b"st" + "🙂".encode()[:3])
    end(live, FinishReason.STOP_TOKEN)
    assert (await live.take()).text == "st\ufffd"


@in_loop
async def test_a_stop_string_ends_the_request_here_and_at_the_scheduler() -> None:
    live, aborts = live_request("stop")
    commit(live, "a stop and more")
    assert aborts == {KEY: FinishReason.STOP_STRING}
    assert live.committed.tolist() == list(b"a stop"), "up to the token that completed the match"
    assert await live.take() == Piece(0, list(b"a stop"), "a ", None)
    account = finished(KEY, FinishReason.STOP_STRING, output_tokens=9)
    live.finish(account)
    assert await live.take() == Piece(6, [], "", Ending("stop", account))


@in_loop
async def test_the_end_does_not_wait_long_for_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "ACCOUNT_WAIT_S", 0.01)
    live, aborts = live_request("x", text=False, ids=False)
    commit(live, "x")
    assert (await live.take()).ending == Ending("x", None)
    live.abort(FinishReason.ABORT)
    assert aborts == {KEY: FinishReason.STOP_STRING}, "once is enough"
    end(live)
    live.detach()
    assert live.is_over


@in_loop
async def test_a_complete_answer_cannot_be_lost_any_more() -> None:
    live, _ = live_request("x")
    commit(live, "ax")
    live.detach()
    assert await live.take() == Piece(0, [97, 120], "a", Ending("x", None))
    assert not live.is_orphan


@in_loop
async def test_what_a_scheduler_left_behind_goes_on_with_its_text_where_it_was() -> None:
    live, aborts = live_request("xy")
    commit(live, "abx")  # the x may begin a stop string
    live.detach()
    assert live.is_orphan
    live.abort(FinishReason.ABORT)
    assert not aborts, "nobody is there to be told"
    resumption = live.resumption
    assert resumption == msgspec.structs.replace(
        live.submit, output=np.array([97, 98, 120], "<i4").tobytes(), was_accepted=True
    )
    live.submitted(aborts.send)
    assert not live.is_orphan
    live.commit(3, ord("y"))
    assert (await live.take()).text == "ab"
    assert aborts, "the stop string began before the loss and ended after it"


@in_loop
async def test_a_complete_answer_cannot_fail_any_more() -> None:
    live, _ = live_request("x")
    commit(live, "ax")
    live.fail(errors.draining())
    assert await live.take() == Piece(0, [97, 120], "a", Ending("x", None))


@in_loop
async def test_a_stop_string_in_the_last_token_wins_over_the_length() -> None:
    live, _ = live_request("c")
    commit(live, "abc")
    end(live)
    piece = await live.take()
    assert piece.text == "ab"
    assert piece.ending is not None
    assert piece.ending.matched == "c"


@pytest.mark.parametrize("index", [0, 2, 5])
@in_loop
async def test_a_gap_or_a_repetition_ends_this_stream_alone(index: int) -> None:
    live, aborts = live_request()
    commit(live, "a")
    live.commit(index, 98)
    assert await live.take() == Piece(0, [97], "a", None)
    assert (await failure_of(live)).code is grpc.StatusCode.INTERNAL
    live.abort(FinishReason.ABORT)
    assert aborts == {KEY: FinishReason.ABORT}


@in_loop
async def test_a_placeholder_is_no_token() -> None:
    live, _ = live_request()
    live.commit(0, -1)
    assert (await failure_of(live)).code is grpc.StatusCode.INTERNAL


@in_loop
async def test_tokens_that_never_came_are_missed_at_the_end() -> None:
    live, _ = live_request()
    live.finish(finished(KEY, FinishReason.LENGTH, output_tokens=1))
    assert (await failure_of(live)).code is grpc.StatusCode.INTERNAL


@in_loop
async def test_after_the_end_nothing_counts() -> None:
    live, aborts = live_request()
    commit(live, "a")
    end(live)
    before = await live.take()
    commit(live, "b")
    end(live, FinishReason.ERROR)
    live.fail(errors.draining())
    live.rejected(errors.draining())
    live.detach()
    live.abort(FinishReason.ABORT)
    assert before.ending is not None
    assert live.committed.tolist() == [97]
    assert not aborts, "the scheduler ended it, so there is nothing to abort"


@in_loop
async def test_a_failure_lets_pass_what_came_before() -> None:
    live, _ = live_request()
    commit(live, "a")
    live.fail(errors.scheduler_lost("gone"))
    assert await live.take() == Piece(0, [97], "a", None)
    assert (await failure_of(live)).reason == "SCHEDULER_LOST"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (FinishReason.ERROR, "EXECUTION_FAILED"),
        (FinishReason.ABORT, "DRAINING"),
        (FinishReason.DEADLINE, "DRAINING"),
        (FinishReason.STOP_STRING, "DRAINING"),
    ],
)
@in_loop
async def test_an_end_that_nobody_asked_for_is_a_failure(reason: FinishReason, told: str) -> None:
    live, _ = live_request()
    end(live, reason)
    assert (await failure_of(live)).reason == told


@in_loop
async def test_an_overflow_cancels_the_reader_and_aborts() -> None:
    async def reader() -> Failure | None:
        live, aborts = live_request(buffer_tokens=3)
        commit(live, "abcd")
        assert aborts == {KEY: FinishReason.ABORT}
        commit(live, "more")
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return live.overflow
        return None

    failure = await asyncio.create_task(reader())
    assert failure is not None
    assert (failure.code, failure.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "SLOW_READER",
    )


@in_loop
async def test_a_reader_with_nothing_to_read_is_not_slow() -> None:
    live, _ = live_request(text=False, ids=False, buffer_tokens=3)
    commit(live, "abcdefgh")
    end(live)
    assert (await live.take()).ending is not None
    assert live.overflow is None


# -- the table -------------------------------------------------------------------------------------


def outputs(tokens: Sequence[tuple[int, int, int]], *ends: int) -> Outputs:
    """Tokens as (key, index, token), and keys that end after one token."""
    keys, indices, ids = zip(*tokens, strict=True) if tokens else ((), (), ())
    return Outputs(
        struct.pack(f"<{len(keys)}Q", *keys),
        struct.pack(f"<{len(keys)}i", *indices),
        struct.pack(f"<{len(keys)}i", *ids),
        tuple(finished(key, FinishReason.LENGTH, output_tokens=1) for key in ends),
    )


@in_loop
async def test_outputs_reach_their_requests() -> None:
    table = LiveRequests()
    big = 2**64 - 1
    lives = {key: live_request(key=key)[0] for key in (1, 2, big)}
    for live in lives.values():
        table.add(live)
    table.outputs(outputs([(1, 0, 97), (big, 0, 98), (99, 0, 7), (2, 0, 99), (2, 1, 100)], 1, 99))
    assert [(await live.take()).text for live in lives.values()] == ["a", "cd", "b"]
    assert [live.is_over for live in lives.values()] == [True, False, False]


@in_loop
async def test_rejections_and_losses_reach_their_requests() -> None:
    table = LiveRequests()
    (one, _), (two, two_aborts), (three, three_aborts) = (live_request(key=k) for k in (1, 2, 3))
    for live in (one, two, three):
        table.add(live)
    table.rejected(Rejected(1, RejectReason.QUEUE_FULL, "full"))
    table.rejected(Rejected(99, RejectReason.QUEUE_FULL, "late"))
    assert (await failure_of(one)).reason == "QUEUE_FULL"
    table.fail_all(errors.draining())
    assert (await failure_of(two)).reason == "DRAINING"
    two.abort(FinishReason.ABORT)
    assert two_aborts, "a request that failed here still runs there"
    table.detach_all()
    three.abort(FinishReason.ABORT)
    assert not three_aborts, "a scheduler that is gone is told nothing"
    assert table.orphans() == [], "what has ended is not handed on"


@in_loop
async def test_the_table_says_when_it_is_empty() -> None:
    table = LiveRequests()
    await table.wait_empty()
    live, _ = live_request()
    table.add(live)
    waiting = asyncio.create_task(table.wait_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    table.remove(live)
    await waiting
    assert len(table) == 0
