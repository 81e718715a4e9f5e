"""How a live request ends: once, by whatever comes first, and as somebody's fault."""

import grpc
import msgspec
import numpy as np
import pytest

from frontend_svc import errors, streams
from frontend_svc.streams import Ending, Piece
from svc_wire.ids import FinishReason
from tests.support.fake_scheduler import finished
from tests.support.frontend import in_loop
from tests.support.live import KEY, commit, end, failure_of, live_request


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
