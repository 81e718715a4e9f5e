"""Processes are killed, stopped and replaced under a crowd of streams, and no stream notices."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.chaos.damage import tear_results
from tests.support.crowd import Crowd
from tests.support.jobs import PATIENT, make_job, run_round, wait_idle
from tests.support.serve import Serve
from tests.support.stack import Stack
from twostroke_client import AsyncClient, Client, ExecutionFailed, ExecutorLost, FinishReason

pytestmark = pytest.mark.process

HASH = ("--model", "hash", "--num-blocks", "2048", "--model-len-max", "512", "--step-ms", "20")
HASH_VOCAB = 257
BAD_SEED = 666
EXECUTOR, SCHEDULER = ("executor_svc",), ("scheduler_svc",)


def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Waits for what shows itself only to those who ask."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def kill_round(stack: Stack, crowd: Crowd, client: Client, victims: tuple[str, ...]) -> None:
    """Kills them at once, starts them anew, and sees tokens come again."""
    for victim in victims:
        stack.end(victim, signal.SIGKILL)
    for victim in victims:
        stack.start(victim)
    stack.wait_ready()
    before = client.server_status().output_tokens
    until(lambda: crowd.check() or client.server_status().output_tokens > before, 20.0)


@pytest.mark.parametrize(
    ("streams", "rounds"),
    [
        (64, [*[EXECUTOR] * 3, *[SCHEDULER] * 3, (*EXECUTOR, *SCHEDULER)]),
        pytest.param(
            200,
            [*[EXECUTOR] * 20, *[SCHEDULER] * 20, *[(*EXECUTOR, *SCHEDULER)] * 5],
            marks=[
                pytest.mark.skipif("CHAOS" not in os.environ, reason="minutes: make chaos"),
                pytest.mark.timeout(900),
            ],
        ),
    ],
    ids=["some", "many"],
)
def test_a_crowd_of_streams_outlives_kills(streams: int, rounds: list[tuple[str, ...]]) -> None:
    chance = random.Random(5)
    chance.shuffle(rounds)
    with Stack(executor=HASH) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        with Crowd(stack.address, streams, seed=5, vocab_size=vocab_size) as crowd:
            # Never quite all: some are between two requests.
            until(lambda: client.server_status().running > streams // 2, 60.0)
            for victims in rounds:
                time.sleep(chance.uniform(0.0, 0.5))  # the moment of the blow
                kill_round(stack, crowd, client, victims)
        assert crowd.ends.total() >= streams
        wait_idle(client)


def test_a_stopped_executor_is_noticed_and_goes_on() -> None:
    slow = ("--stall-timeout", "0.6")
    with Stack(executor=HASH, scheduler=slow) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        with Crowd(stack.address, 8, seed=1, vocab_size=vocab_size) as crowd:
            until(lambda: client.server_status().running == 8, 20.0)
            executor = stack.processes["executor_svc"].pid
            os.kill(executor, signal.SIGSTOP)
            until(lambda: not client.server_status().ready, 5.0)
            assert "executor" in client.server_status().reason
            os.kill(executor, signal.SIGCONT)
            until(lambda: client.server_status().ready, 5.0)
        assert crowd.ends.total() >= 8
        assert "executor lost" not in stack.logs(), "a pause is no loss"


def test_an_executor_that_is_heard_but_ends_no_step_is_stalled() -> None:
    slow, impatient = ("--model", "hash", "--step-ms", "4000"), ("--stall-timeout", "1.5")
    with Stack(executor=slow, scheduler=impatient) as stack, Client(stack.address) as client:
        stream = client.generate([1, 2, 3], max_tokens=1, ignore_eos=True)
        until(lambda: not client.server_status().ready, 5.0)
        assert "has not ended step 1" in client.server_status().reason
        pulse = stack.run_dir / "executor.lock"
        before = pulse.stat().st_mtime_ns
        time.sleep(1.2)  # longer than from one beat to the next
        assert pulse.stat().st_mtime_ns == before, "the supervisor must see it, too"
        *_, last = stream
        assert last.finish is not None
        until(lambda: client.server_status().ready, 5.0)
        until(lambda: pulse.stat().st_mtime_ns != before, 5.0)


def test_a_torn_result_costs_a_moment() -> None:
    """The executor lives: a new epoch begins at once, not when somebody asks for one anyway."""
    with Stack(executor=HASH) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        with Crowd(stack.address, 8, seed=3, vocab_size=vocab_size) as crowd:
            until(lambda: client.server_status().running > 4, 20.0)
            while "unusable result" not in stack.logs():
                tear_results(stack.run_dir)
                crowd.check()
            before = client.server_status().output_tokens
            until(lambda: client.server_status().output_tokens > before, 3.0)


def test_a_scheduler_is_replaced_by_one_with_another_policy() -> None:
    with Stack(executor=HASH) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        with Crowd(stack.address, 32, seed=2, vocab_size=vocab_size):
            until(lambda: client.server_status().running == 32, 20.0)
            begin = time.monotonic()
            assert stack.end("scheduler_svc", signal.SIGINT) == 0
            assert time.monotonic() - begin < 5.0, "it must not wait for its streams"
            stack.start("scheduler_svc", "--policy", "priority")
            stack.wait_ready()
            assert client.server_status().policy == "priority"
            assert "going on with the KV of the scheduler before" in stack.logs()
        wait_idle(client)


def test_schedulers_follow_each_other_under_a_crowd() -> None:
    """Each goes on with the KV that the one before has left, and it must be the right one."""
    with Stack(executor=HASH) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        with Crowd(stack.address, 32, seed=6, vocab_size=vocab_size) as crowd:
            for died in (False, False, True, False, True, False):
                kill_round(stack, crowd, client, SCHEDULER) if died else hand_over(stack, client)
        assert stack.logs().count("going on with the KV") == 4
        wait_idle(client)


def test_a_scheduler_waits_for_its_steps_unless_it_is_asked_twice() -> None:
    slow = ("--model", "hash", "--step-ms", "9000")
    with Stack(executor=slow) as stack, Client(stack.address) as client:
        with client.generate([1, 2, 3], max_tokens=5, ignore_eos=True):
            until(lambda: client.server_status().running == 1, 10.0)
            scheduler = stack.processes.pop("scheduler_svc")
            scheduler.send_signal(signal.SIGINT)
            until(lambda: '"leaving"' in stack.logs(), 5.0)
            assert scheduler.poll() is None
            scheduler.send_signal(signal.SIGINT)
            assert scheduler.wait(3.0) == 0
        assert not list(stack.run_dir.glob("kv-index*")), "nobody knows what the step will leave"


def hand_over(stack: Stack, client: Client) -> None:
    before = client.server_status().output_tokens
    until(lambda: client.server_status().output_tokens > before, 20.0)
    old = stack.processes["scheduler_svc"]
    stack.start("scheduler_svc", "--replace")
    assert old.wait(20) == 0
    stack.wait_ready()


def test_another_model_is_no_continuation() -> None:
    with Stack(executor=HASH) as stack, Client(stack.address) as client:
        stream = client.generate([1, 2, 3], max_tokens=400, ignore_eos=True)
        next(stream)
        stack.end("executor_svc", signal.SIGKILL)
        stack.start("executor_svc", *HASH, "--served-name", "another")
        with pytest.raises(ExecutorLost, match="another model"):
            for _ in stream:
                pass
        stack.wait_ready()
        assert client.model_info().name == "another"
        wait_idle(client)


async def one_bad_and_31_good(address: str) -> Counter[str]:
    """How the good ones ended; the bad one must fail alone."""
    chance = random.Random(9)
    jobs = [make_job(chance, HASH_VOCAB) for _ in range(31)]
    neighbours = asyncio.create_task(run_round(address, jobs, PATIENT))
    async with AsyncClient(address, retry=PATIENT) as client:
        with pytest.raises(ExecutionFailed, match="whenever it computes this request"):
            await client.complete([1, 2, 3], max_tokens=50, seed=BAD_SEED, ignore_eos=True)
    return await neighbours


def test_a_request_that_breaks_the_executor_fails_alone() -> None:
    with (
        Stack(executor=(*HASH, "--fail-seed", str(BAD_SEED))) as stack,
        Client(stack.address) as client,
    ):
        ends = asyncio.run(one_bad_and_31_good(stack.address))
        assert ends[FinishReason.STOP] + ends[FinishReason.LENGTH] == 31
        wait_idle(client)


def test_a_request_that_kills_the_executor_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_KILL_SEED", str(BAD_SEED))
    monkeypatch.setenv("TWOSTROKE_STEP_MS", "20")
    with Serve() as serve, Client(serve.address) as client:
        ends = asyncio.run(one_bad_and_31_good(serve.address))
        assert ends[FinishReason.STOP] + ends[FinishReason.LENGTH] == 31
        wait_idle(client)
        assert serve.errors().count("was killed by SIGKILL; starting it again") >= 2
