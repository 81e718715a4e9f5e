"""The policy is changed under load, through real processes: no stream notices."""

import asyncio
import random
from collections import Counter
from itertools import cycle

import pytest

from tests.support.jobs import Job, make_job, run_round, wait_idle
from tests.support.stack import Stack
from twostroke_client import (
    AsyncClient,
    Client,
    FinishReason,
    InvalidRequest,
    RefusedByPolicy,
    RetryPolicy,
)

pytestmark = pytest.mark.process

STREAMS, SWAPS = 200, 20
# A pool for a dozen of them: swaps meet requests that wait, run and were pre-empted.
EXECUTOR = (
    "--model", "hash", "--num-blocks", "160", "--block-size", "16", "--model-len-max", "1024",
    "--step-ms", "4",
)  # fmt: skip


def test_twenty_swaps_through_all_policies_under_load() -> None:
    chance = random.Random(5)
    with Stack(executor=EXECUTOR) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        jobs = [_job(chance, vocab_size) for _ in range(STREAMS)]
        ends, seen = asyncio.run(_round_with_swaps(stack.address, jobs))
        assert set(ends) <= {FinishReason.STOP, FinishReason.LENGTH}
        assert ends.total() == STREAMS
        assert seen.total() >= SWAPS
        assert set(seen) == set(client.policy().available)
        wait_idle(client)
        state = client.policy()
        assert state.faults == 0, state.last_fault
        assert {usage.tenant for usage in state.tenants} == {"a", "b", "c"}
        assert sum(usage.requests for usage in state.tenants) == STREAMS
        assert client.server_status().preemptions > 0, "the pool is meant to be too small"


def test_a_policy_that_does_not_exist_changes_nothing() -> None:
    with Stack(executor=EXECUTOR) as stack, Client(stack.address) as client:
        client.set_policy("fair", {"weight.a": "3"})
        for name, options in (
            ("nonsense", {}),
            ("os:system", {}),
            ("fair", {"weight.a": "-1"}),
            ("sjf", {"wheel": "1"}),
        ):
            with pytest.raises(InvalidRequest):
                client.set_policy(name, options)
            assert client.policy().name == "fair"


def test_the_deadline_of_a_call_reaches_the_policy() -> None:
    """What cannot be done in time is refused at once, instead of being cut off half done."""
    with (
        Stack(executor=(*EXECUTOR, "--step-ms", "20"), scheduler=("--policy", "deadline")) as stack,
        Client(stack.address, retry=RetryPolicy(attempts=1)) as client,
    ):
        client.complete([1, 2, 3], max_tokens=10, ignore_eos=True)  # it learns what steps take
        with pytest.raises(RefusedByPolicy):
            client.complete([1, 2, 3], max_tokens=500, ignore_eos=True, timeout_s=2.0)
        assert client.complete([1], max_tokens=5, ignore_eos=True, timeout_s=5.0).token_ids


def _job(chance: random.Random, vocab_size: int) -> Job:
    job = make_job(chance, vocab_size)
    job.options["tenant"] = chance.choice("abc")
    job.options["priority"] = chance.choice([0, 0, 3])
    job.options["expected_tokens"] = chance.randint(1, 50)
    return job


async def _round_with_swaps(address: str, jobs: list[Job]) -> tuple[Counter[str], Counter[str]]:
    """How the jobs ended, and how often each policy was put in force while they ran."""
    seen = Counter[str]()
    running = asyncio.create_task(run_round(address, jobs))
    async with AsyncClient(address) as client:
        for name in cycle((await client.policy()).available):
            if running.done():
                break
            assert (await client.set_policy(name)).name == name
            seen[name] += 1
            # Not to wait for anything: so that steps are planned under each.
            await asyncio.wait([running], timeout=0.05)
    return await running, seen
