"""Front ends that share a port: they are killed, restarted and replaced, and no stream notices."""

import time
from collections.abc import Iterable

import psutil
import pytest

from tests.support.crowd import Crowd
from tests.support.jobs import text_of, wait_idle
from tests.support.serve import Serve, wait_until
from twostroke_client import Client, Completion, RetryPolicy, TwostrokeError

pytestmark = pytest.mark.process

VOCAB = 257
STREAMS = 50


@pytest.fixture(autouse=True)
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that last for a second or two."""
    monkeypatch.setenv("TWOSTROKE_STEP_MS", "20")
    monkeypatch.setenv("TWOSTROKE_NUM_BLOCKS", "2048")


def crowd_of(serve: Serve) -> Crowd:
    """50 streams over 10 connections, each of which some front end gets."""
    return Crowd(serve.address, STREAMS, seed=7, vocab_size=VOCAB, clients=10)


def output_tokens(client: Client) -> int:
    """So far, as any front end tells; -1: none answers now."""
    try:
        return client.server_status().output_tokens
    except TwostrokeError:
        return -1


def tokens_come(client: Client, crowd: Crowd) -> None:
    """Returns when streams get on again."""
    before = output_tokens(client)
    assert wait_until(lambda: crowd.check() or output_tokens(client) > max(before, 0), 30)


def kill(victims: Iterable[psutil.Process]) -> None:
    """All at once: none may see the others' death."""
    victims = list(victims)
    for victim in victims:
        victim.kill()
    psutil.wait_procs(victims, 10)


def test_a_crowd_outlives_the_deaths_of_front_ends() -> None:
    with Serve("--frontends", "2") as serve, Client(serve.address) as client:
        assert len(serve.frontends()) == 2
        with crowd_of(serve) as crowd:
            tokens_come(client, crowd)
            for behind in ((), (), ("scheduler",), ("executor", "scheduler")):
                kill(serve.frontends()[:1])
                tokens_come(client, crowd)
                # Both, and even who is behind them: the clients have what it takes to go on.
                services = serve.find_services()
                kill([*serve.frontends(), *(services[role] for role in behind)])
                tokens_come(client, crowd)
        assert crowd.ends.total() >= STREAMS
        wait_idle(client)


@pytest.mark.parametrize("frontends", [1, 2])
def test_a_rolling_restart_drops_no_stream(frontends: int) -> None:
    """Some streams come to their end in the drain, others are cut off and go on elsewhere."""
    options = ("--frontends", str(frontends), "--drain-timeout", "0.5")
    with Serve(*options) as serve, Client(serve.address) as client:
        with crowd_of(serve) as crowd:
            tokens_come(client, crowd)
            before = {process.pid for process in serve.frontends()}
            assert serve.command("restart", "frontend") == (0, "")
            assert wait_until(lambda: len(serve.frontends()) == frontends, 10)
            assert not before & {process.pid for process in serve.frontends()}
            tokens_come(client, crowd)
        assert "cutting off streams" in serve.errors()
        assert crowd.ends.total() >= STREAMS
        wait_idle(client)


def test_newcomers_do_not_notice_a_rolling_restart() -> None:
    """Nobody is refused: the port is open all the time, and a connection is told when to move."""
    retry = RetryPolicy(attempts=2, pause_s=0.01)
    with Serve() as serve, Client(serve.address, retry=retry) as client:
        answers = 0
        with serve.begin_command("restart", "frontend") as restarting:
            while restarting.poll() is None:
                answers += client.complete([1, 2, 3], max_tokens=2).finish.output_tokens > 0
        assert restarting.returncode == 0
        assert answers > 10


def test_the_same_answer_with_and_without_a_death() -> None:
    def answer(client: Client, victims: Iterable[psutil.Process]) -> Completion:
        stream = client.generate("tell me", max_tokens=120, seed=3, ignore_eos=True)
        pieces = [next(stream), next(stream)]
        began = asked = time.monotonic()
        kill(victims)
        while pieces[-1].finish is None:
            asked = time.monotonic()
            pieces.append(next(stream))
        ids = [token for piece in pieces for token in piece.token_ids]
        assert [piece.first_index for piece in pieces] == [
            sum(len(piece.token_ids) for piece in pieces[:number]) for number in range(len(pieces))
        ]
        text = "".join(piece.text for piece in pieces)
        assert text == text_of(ids)
        prompt, finish = pieces[0].prompt, pieces[-1].finish
        assert prompt is not None
        assert finish is not None
        assert finish.total_ms >= (asked - began) * 1e3, "a pause is part of it"
        return Completion(text, tuple(ids), prompt, finish)

    with Serve() as serve, Client(serve.address) as client:
        quiet = answer(client, [])
        broken = answer(client, serve.frontends())
    assert (broken.text, broken.token_ids) == (quiet.text, quiet.token_ids)


@pytest.mark.slow
def test_a_client_leaves_a_front_end_that_is_stuck() -> None:
    """Where it goes then is the kernel's choice, so that is not looked at here."""
    never = RetryPolicy(resume_s=0)
    with Serve() as serve, Client(serve.address, retry=never) as client:
        stream = client.generate([1], max_tokens=300, ignore_eos=True)
        next(stream)
        [stuck] = serve.frontends()
        stuck.suspend()
        try:
            with pytest.raises(TwostrokeError, match="ping timeout"):
                list(stream)
            assert stuck.is_running(), "before the supervisor kills it"
        finally:
            stuck.resume()


def test_requests_whose_clients_stay_away_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_RESUME_GRACE", "3")
    never = RetryPolicy(resume_s=0)
    with Serve("--frontends", "2") as serve, Client(serve.address) as observer:
        with Client(serve.address, retry=never) as client:
            streams = [client.generate([1, n], max_tokens=2000, ignore_eos=True) for n in range(4)]
            for stream in streams:
                next(stream)
            kill(serve.frontends())
            killed_s = time.monotonic()
            for stream in streams:
                with pytest.raises(TwostrokeError):
                    list(stream)
        assert wait_until(lambda: output_tokens(observer) > 0, 20)
        if time.monotonic() - killed_s < 2.5:
            assert observer.server_status().running == 4, "for a while they go on"
        assert wait_until(lambda: observer.server_status().running == 0, 10)
        assert time.monotonic() - killed_s > 2.5
        wait_idle(observer)
