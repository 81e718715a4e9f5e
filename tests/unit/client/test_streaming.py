"""What a caller gets from an answer: pieces, the whole, errors, retries, cancellation."""

import threading
import time

import grpc
import pytest

import twostroke_client as ts
from tests.support.client_drive import Drive
from tests.support.fake_server import ANSWER, Abort, FakeServer, Step, first, last, more
from twostroke.v1 import generation_pb2 as pb

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
LOST = Abort(UNAVAILABLE, reason="EXECUTOR_LOST")
QUEUE_FULL = Abort(EXHAUSTED, reason="QUEUE_FULL", retry_after_s=0.05)


def test_pieces_come_as_they_were_sent(drive: Drive) -> None:
    with FakeServer() as server:
        pieces = drive.pieces(server.address)
    assert [piece.text for piece in pieces] == ["He", "llo", "!"]
    assert [piece.first_index for piece in pieces] == [0, 1, 3]
    assert pieces[0].prompt == ts.PromptInfo(token_count=3, request_id="r")
    assert [piece.finish is None for piece in pieces] == [True, True, False]


def test_complete_is_the_concatenation(drive: Drive) -> None:
    with FakeServer() as server:
        answer = drive.complete(server.address)
    assert answer.text == "Hello!"
    assert answer.token_ids == (10, 11, 12, 2)
    assert answer.finish.reason is ts.FinishReason.STOP
    assert answer.finish.matched == 2
    assert answer.finish.tokens_per_s == pytest.approx(3.0)


def told(*token_ids: int) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(
            chosen=pb.Logprob(token_id=token_id, text="x", logprob=-0.5),
            top=[pb.Logprob(token_id=9, text="y", logprob=-0.25)],
        )
        for token_id in token_ids
    ]


def with_told(message: pb.GenerateResponse, *token_ids: int) -> pb.GenerateResponse:
    message.logprobs.extend(told(*token_ids))
    return message


def test_log_probabilities_are_joined_as_the_tokens_are(drive: Drive) -> None:
    script = [with_told(first("He", [10]), 10), with_told(more(1, "y", 11, 12), 11, 12)]
    with FakeServer([*script, with_told(last(3), 2)]) as server:
        answer = drive.complete(server.address, logprobs=1)
    assert [entry.chosen.token_id for entry in answer.logprobs] == [10, 11, 12, 2]
    assert answer.logprobs[0] == ts.TokenLogprobs(
        ts.Logprob(10, "x", -0.5), (ts.Logprob(9, "y", -0.25),)
    )
    (request,) = server.requests
    assert request.output.logprobs == 1


def test_options_reach_the_server(drive: Drive) -> None:
    with FakeServer() as server:
        drive.complete(server.address, temperature=0.0, stop=["x"], max_tokens=7, top_k=None)
    (request,) = server.requests
    assert request.text == "hi"
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("top_k")
    assert list(request.stop.strings) == ["x"]
    assert request.stop.max_tokens == 7


@pytest.mark.parametrize("failure", [LOST, QUEUE_FULL, Abort(UNAVAILABLE)], ids=lambda _: "")
def test_retried_before_the_first_token(drive: Drive, failure: Abort) -> None:
    with FakeServer([failure], [first(), failure], ANSWER) as server:
        assert drive.complete(server.address).text == "Hello!"
    assert len(server.requests) == 3


def test_not_retried_after_the_first_token(drive: Drive) -> None:
    with FakeServer([first("He", [10]), LOST], ANSWER) as server:
        with pytest.raises(ts.ExecutorLost):
            drive.complete(server.address)
        assert len(server.requests) == 1


def test_retries_are_bounded_by_attempts(drive: Drive) -> None:
    with FakeServer([QUEUE_FULL]) as server:
        with pytest.raises(ts.QueueFull) as caught:
            drive.complete(server.address)
        assert len(server.requests) == 3
    assert caught.value.retry_after_s == pytest.approx(0.05)


def test_retries_are_bounded_by_the_deadline(drive: Drive) -> None:
    full = Abort(EXHAUSTED, reason="QUEUE_FULL", retry_after_s=30)
    patient = ts.RetryPolicy(pause_s_max=60)
    started = time.monotonic()
    with FakeServer([full], ANSWER) as server:
        with pytest.raises(ts.QueueFull):
            drive.complete(server.address, retry=patient, timeout_s=20)
        assert len(server.requests) == 1
    assert time.monotonic() - started < 10, "it must not sleep towards a deadline it will miss"


def test_a_server_that_asks_for_a_long_pause_is_not_asked_again(drive: Drive) -> None:
    with FakeServer([Abort(EXHAUSTED, reason="QUEUE_FULL", retry_after_s=60)]) as server:
        with pytest.raises(ts.QueueFull) as caught:
            drive.complete(server.address)
        assert len(server.requests) == 1
    assert caught.value.retry_after_s == 60


def test_the_asked_pause_is_kept(drive: Drive) -> None:
    full = Abort(EXHAUSTED, reason="QUEUE_FULL", retry_after_s=0.2)
    started = time.monotonic()
    with FakeServer([full], ANSWER) as server:
        drive.complete(server.address)
    assert time.monotonic() - started >= 0.2


REFUSALS = {
    "field": (Abort(INVALID, reason="INVALID_FIELD", field="sampling.top_p"), ts.InvalidRequest),
    "long": (Abort(INVALID, reason="TOO_LONG"), ts.TooLong),
    "slow": (Abort(EXHAUSTED, reason="SLOW_READER"), ts.SlowReader),
    "model": (Abort(grpc.StatusCode.NOT_FOUND), ts.ModelNotFound),
    "bug": (Abort(grpc.StatusCode.INTERNAL, reason="EXECUTION_FAILED"), ts.ExecutionFailed),
    "other": (Abort(grpc.StatusCode.PERMISSION_DENIED), ts.UnexpectedStatus),
}


@pytest.mark.parametrize(("failure", "kind"), REFUSALS.values(), ids=REFUSALS.keys())
def test_final_errors_are_typed_and_not_retried(
    drive: Drive, failure: Abort, kind: type[ts.TwostrokeError]
) -> None:
    with FakeServer([failure], ANSWER) as server:
        with pytest.raises(kind, match="because") as caught:
            drive.complete(server.address)
        assert len(server.requests) == 1
    assert type(caught.value) is kind
    if isinstance(caught.value, ts.InvalidRequest):
        assert caught.value.field == "sampling.top_p"


BROKEN: dict[str, list[Step]] = {
    "gap": [first("a", [1]), more(2, "b", 3), last(3)],
    "repeat": [first("a", [1, 2]), more(1, "b", 2), last(2)],
    "no finish": [first("a", [1])],
    "no message": [],
    "no prompt": [more(0, "a", 1), last(1)],
    "second prompt": [first("a"), first("b")],
    "a token without its log-probability": [with_told(first("a", [1, 2]), 1), last(2)],
    "after the finish": [first(), last(0), more(1, "x", 1)],
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_stream_is_an_error(drive: Drive, script: list[Step]) -> None:
    with FakeServer(script) as server, pytest.raises(ts.ProtocolError):
        drive.complete(server.address)


def test_closing_cancels_the_request(drive: Drive) -> None:
    with FakeServer([first("He", [10]), threading.Event()]) as server:
        (piece,) = drive.pieces(server.address, take=1)
        assert piece.text == "He"
        assert server.cancelled.wait(5)


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e12])
def test_a_timeout_beyond_all_bounds_is_none(drive: Drive, timeout_s: float) -> None:
    with FakeServer() as server:
        assert drive.complete(server.address, timeout_s=timeout_s).text == "Hello!"


def test_a_deadline_ends_a_stuck_answer(drive: Drive) -> None:
    with FakeServer([first("He", [10]), threading.Event()]) as server:
        with pytest.raises(ts.DeadlineExceeded):
            drive.complete(server.address, timeout_s=1)
        assert server.cancelled.wait(5)


def test_nobody_answers(drive: Drive) -> None:
    with FakeServer() as server:
        address = server.address
    with pytest.raises(ts.Unreachable):
        drive.complete(address)


def test_a_server_that_comes_up_late_is_found(drive: Drive) -> None:
    with FakeServer() as gone:
        port = int(gone.address.rpartition(":")[2])
    late = FakeServer(port=port)
    timer = threading.Timer(0.3, late.__enter__)
    timer.start()
    try:
        patient = ts.RetryPolicy(attempts=50, pause_s=0.2, pause_s_max=0.2)
        assert drive.complete(late.address, retry=patient, timeout_s=15).text == "Hello!"
    finally:
        timer.join()
        late.__exit__(None, None, None)
