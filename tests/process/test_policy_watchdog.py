"""A policy that does not answer as it should is replaced in the process that it could end, and
streams go on."""

import asyncio
import random
import time

import pytest

from executor_svc.hash_model import expected_tokens
from scheduler_svc.watchdog import ANSWER_S
from tests.support.jobs import make_job, run_round
from tests.support.stack import Stack
from twostroke_client import Client

pytestmark = pytest.mark.process

EXECUTOR = ("--model", "hash", "--model-len-max", "1024", "--step-ms", "5")


@pytest.mark.parametrize("name", ["Loop", "Sleeper"])
def test_a_policy_that_does_not_answer_is_replaced(name: str) -> None:
    chance = random.Random(3)
    policy = ("--policy", f"tests.support.stuck_policies:{name}")
    with Stack(executor=EXECUTOR, scheduler=policy) as stack, Client(stack.address) as client:
        assert client.policy().name == name.lower()
        vocab_size = client.model_info().vocab_size
        jobs = [make_job(chance, vocab_size) for _ in range(12)]
        jobs[6].options["tenant"] = "stuck"
        began_s = time.monotonic()
        # Each stream is compared with what it must be, token by token.
        assert asyncio.run(run_round(stack.address, jobs)).total() == len(jobs)
        assert time.monotonic() - began_s > ANSWER_S
        state = client.policy()
        assert (state.name, state.faults) == ("fcfs", 1)
        assert state.last_fault == f"{name.lower()}: key did not answer in time"
        assert client.complete([1, 2], max_tokens=3, tenant="stuck").token_ids
        assert "policy replaced" in stack.logs()


def test_a_policy_that_raises_what_nobody_can_show_ends_nothing() -> None:
    chance = random.Random(4)
    policy = ("--policy", "tests.support.stuck_policies:Rude")
    with Stack(executor=EXECUTOR, scheduler=policy) as stack, Client(stack.address) as client:
        jobs = [make_job(chance, client.model_info().vocab_size) for _ in range(12)]
        jobs[6].options["tenant"] = "stuck"
        assert asyncio.run(run_round(stack.address, jobs)).total() == len(jobs)
        state = client.policy()
        assert (state.name, state.faults) == ("fcfs", 1)
        assert state.last_fault == "rude: refuse raised what cannot be shown"
        assert client.server_status().policy == "fcfs"


def test_a_policy_that_is_slow_at_every_question_is_replaced() -> None:
    """A prompt is read in 250 pieces, each of which costs an answer: 5 s, if nobody minded."""
    options = ("--policy", "tests.support.stuck_policies:Slow", "--step-tokens-max", "4")
    executor = ("--model", "hash", "--model-len-max", "1024")
    with Stack(executor=executor, scheduler=options) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        prompt = [number % vocab_size for number in range(1000)]
        answer = client.complete(prompt, max_tokens=3, ignore_eos=True, temperature=0.0)
        right = expected_tokens(prompt, vocab_size=vocab_size, max_tokens=3)
        assert list(answer.token_ids) == right
        state = client.policy()
        assert (state.name, state.faults) == ("fcfs", 1)
        assert "slow: its answers took" in state.last_fault
        assert "policy is slow" in stack.logs()
        assert "policy replaced" in stack.logs()
