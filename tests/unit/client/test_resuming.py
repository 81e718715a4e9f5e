"""A stream that breaks after its first token: its reader sees a pause, or what is the matter."""

import threading
import time

import grpc
import pytest

import twostroke_client as ts
from tests.support.client_drive import QUICK, Drive
from tests.support.fake_server import ANSWER, Abort, FakeServer, Step, first, last, more
from twostroke_client.retries import RetryPolicy

TOKEN = "the-token"
GONE = Abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
CANCELLED = Abort(grpc.StatusCode.CANCELLED)
"""What a server that is about to stop does to a call that has just arrived."""
DRAINING = Abort(grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_after_s=0.01)
NOT_READY = Abort(grpc.StatusCode.UNAVAILABLE, reason="NOT_READY", retry_after_s=0.01)
FULL = Abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_after_s=0.01)


def rest(index: int, text: str, *ids: int) -> Step:
    """The first message of a stream that goes on with an answer."""
    message = first(text, ids)
    message.first_index = index
    return message


BEGUN: tuple[Step, ...] = (first("He", [10]), more(1, "l", 11))
REST: tuple[Step, ...] = (rest(2, "lo", 12), last(3, "!"))


@pytest.mark.parametrize("broken", [GONE, DRAINING, CANCELLED])
def test_a_broken_stream_goes_on_from_the_next_token(drive: Drive, broken: Abort) -> None:
    with FakeServer([*BEGUN, broken], REST, token=TOKEN) as server:
        pieces = drive.pieces(server.address)
        begin, again = server.requests
    assert "".join(piece.text for piece in pieces) == "Hello!"
    assert [piece.first_index for piece in pieces] == [0, 1, 2, 3]
    assert [piece.token_ids for piece in pieces] == [(10,), (11,), (12,), (2,)]
    assert [piece.prompt is not None for piece in pieces] == [True, False, False, False]
    assert (again.resume.token, list(again.resume.token_ids)) == (TOKEN, [10, 11])
    again.ClearField("resume")
    assert again == begin


@pytest.mark.parametrize("broken", [GONE, DRAINING, CANCELLED])
def test_an_answer_that_has_its_finish_is_whole(drive: Drive, broken: Abort) -> None:
    """Whatever happens to the status of the stream that brought it."""
    with FakeServer([*ANSWER, broken], token=TOKEN) as server:
        assert drive.complete(server.address).text == "Hello!"
        assert len(server.requests) == 1


def test_a_call_that_the_server_cancelled_is_begun_again(drive: Drive) -> None:
    with FakeServer([CANCELLED], ANSWER) as server:
        assert drive.complete(server.address).text == "Hello!"


def test_the_durations_are_those_of_the_whole(drive: Drive) -> None:
    pause = threading.Event()
    threading.Timer(0.3, pause.set).start()
    with FakeServer([*BEGUN, pause, GONE], REST, token=TOKEN) as server:
        finish = drive.complete(server.address).finish
    assert finish.first_token_ms < 250 <= finish.total_ms < 1100, "not those of the last stream"
    assert finish.output_tokens == 4


def test_it_is_tried_until_somebody_takes_it(drive: Drive) -> None:
    turned_away: list[list[Step]] = [[NOT_READY], [FULL], [GONE], [CANCELLED], [NOT_READY]]
    with FakeServer([*BEGUN, GONE], *turned_away, REST, token=TOKEN) as server:
        assert drive.complete(server.address).text == "Hello!"
        assert len(server.requests) == 7, "more than `attempts`, which are for the beginning"


def test_a_stream_may_break_again_and_again(drive: Drive) -> None:
    scripts: list[list[Step]] = [
        [first("He", [10]), GONE],
        [rest(1, "l", 11), GONE],
        [GONE],
        [*REST],
    ]
    with FakeServer(*scripts, token=TOKEN) as server:
        assert drive.complete(server.address).token_ids == (10, 11, 12, 2)
        ids = [list(request.resume.token_ids) for request in server.requests]
    assert ids == [[], [10], [10, 11], [10, 11]]


def test_a_server_that_comes_back_is_found() -> None:
    server = FakeServer([*BEGUN, threading.Event()], token=TOKEN)
    with ts.Client(server.address, retry=QUICK) as client:
        with server:
            stream = client.generate("hi")
            begun = [next(stream), next(stream)]
        with FakeServer(REST, port=int(server.address.rpartition(":")[2])):
            assert "".join(piece.text for piece in [*begun, *stream]) == "Hello!"


# -- when it cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["EXECUTOR_LOST", "SCHEDULER_LOST"])
def test_what_was_lost_behind_the_server_is_told(drive: Drive, reason: str) -> None:
    lost = Abort(grpc.StatusCode.UNAVAILABLE, reason=reason)
    with FakeServer([*BEGUN, lost], REST, token=TOKEN) as server:
        with pytest.raises(ts.Lost):
            drive.complete(server.address)
        assert len(server.requests) == 1


def test_another_model_is_told(drive: Drive) -> None:
    refused = Abort(grpc.StatusCode.FAILED_PRECONDITION, reason="CANNOT_RESUME")
    with (
        FakeServer([*BEGUN, GONE], [refused], token=TOKEN) as server,
        pytest.raises(ts.CannotResume),
    ):
        drive.complete(server.address)


def test_without_a_token_a_break_is_the_end(drive: Drive) -> None:
    with FakeServer([*BEGUN, GONE], ANSWER) as server:
        with pytest.raises(ts.Unreachable):
            drive.complete(server.address)
        assert len(server.requests) == 1


def test_resuming_can_be_switched_off(drive: Drive) -> None:
    with FakeServer([*BEGUN, GONE], REST, token=TOKEN) as server:
        with pytest.raises(ts.Unreachable):
            drive.complete(server.address, retry=RetryPolicy(resume_s=0))
        assert len(server.requests) == 1


def test_it_gives_up_after_a_while(drive: Drive) -> None:
    policy = RetryPolicy(pause_s=0.01, resume_s=0.3)
    begin = time.monotonic()
    with FakeServer([*BEGUN, GONE], [GONE], token=TOKEN) as server:
        with pytest.raises(ts.Unreachable):
            drive.complete(server.address, retry=policy)
        assert len(server.requests) > 2
    assert time.monotonic() - begin < 5


def test_the_callers_time_bounds_it(drive: Drive) -> None:
    with FakeServer([*BEGUN, GONE], [GONE], token=TOKEN) as server:
        begin = time.monotonic()
        with pytest.raises((ts.Unreachable, ts.DeadlineExceeded)):
            drive.complete(server.address, timeout_s=0.5, retry=QUICK)
        assert time.monotonic() - begin < 5, "not the 30 seconds of the policy"


def test_a_token_that_comes_twice_is_an_error(drive: Drive) -> None:
    with (
        FakeServer([*BEGUN, GONE], [rest(1, "l", 11)], token=TOKEN) as server,
        pytest.raises(ts.ProtocolError, match="expected token 2"),
    ):
        drive.complete(server.address)
