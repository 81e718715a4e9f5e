"""A live request between scheduler and client: what came goes out in pieces, gapless."""

import asyncio

import grpc
import pytest

from frontend_svc.errors import Failure
from frontend_svc.streams import Ending, Piece
from svc_wire.ids import FinishReason
from tests.support.fake_scheduler import finished, logprobs_of
from tests.support.frontend import in_loop
from tests.support.live import KEY, commit, end, failure_of, live_request


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
async def test_a_reader_may_be_late_by_what_the_buffer_holds() -> None:
    live, aborts = live_request(buffer_tokens=3)
    for _ in range(2):
        commit(live, "abc")
        assert live.overflow is None
        assert (await live.take()).text == "abc"
    assert not aborts


@in_loop
async def test_a_reader_with_nothing_to_read_is_not_slow() -> None:
    live, _ = live_request(text=False, ids=False, buffer_tokens=3)
    commit(live, "abcdefgh")
    end(live)
    assert (await live.take()).ending is not None
    assert live.overflow is None
