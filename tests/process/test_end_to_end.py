"""All services as real processes, with the hash model: every stream ends once and rightly."""

import asyncio
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from executor_svc.hash_model import expected_tokens
from svc_wire.frontend_link import Sampling
from tests.support.stack import Stack
from twostroke_client import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    ExecutorLost,
    FinishReason,
    GenerateOptions,
    InvalidRequest,
    SchedulerLost,
    TooLong,
    TwostrokeError,
)

pytestmark = pytest.mark.process

HASH = ("--model", "hash", "--num-blocks", "64", "--block-size", "16", "--model-len-max", "1024")
SLOW_HASH = (*HASH, "--step-ms", "2")


@dataclass(frozen=True)
class Job:
    """A request, what it must produce, and how its client behaves."""

    prompt: list[int]
    options: GenerateOptions
    expected: list[int]
    cancel_after: int | None = None
    timeout_s: float | None = None


def make_job(chance: random.Random, vocab_size: int, **behaviour: float | int | None) -> Job:
    prompt = [chance.randrange(vocab_size) for _ in range(chance.randint(1, 200))]
    sampling = Sampling()
    if chance.random() < 0.5:
        # Values that float32 holds exactly, since the oracle hashes their bits.
        sampling = Sampling(
            temperature=chance.choice([0.5, 1.0, 1.25]),
            top_k=chance.choice([0, 5, 40]),
            top_p=chance.choice([1.0, 0.5]),
            min_p=chance.choice([0.0, 0.125]),
            seed=chance.randrange(-(2**63), 2**63),
        )
    stop_ids = chance.sample(range(vocab_size), chance.randint(0, 4))
    max_tokens = chance.randint(1, 120)
    min_tokens = min(chance.choice([0, 0, 5]), max_tokens)
    if behaviour:
        stop_ids, max_tokens = [], 800
    expected = expected_tokens(
        prompt,
        vocab_size=vocab_size,
        max_tokens=max_tokens,
        sampling=sampling,
        stop_ids=stop_ids,
        min_tokens=min_tokens,
    )
    options = GenerateOptions(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stop_ids,
        ignore_eos=True,
    )
    return Job(prompt, options, expected, **behaviour)  # type: ignore[arg-type]


async def run_job(client: AsyncClient, job: Job) -> str:
    """Runs a job, checks its stream, returns how it ended."""
    tokens: list[int] = []
    end = "nothing"
    try:
        stream = client.generate(job.prompt, timeout_s=job.timeout_s, **job.options)
        async with stream:
            async for delta in stream:
                assert end == "nothing", "a piece after the end"
                assert delta.first_index == len(tokens), "a gap in the indices"
                tokens += delta.token_ids
                if job.cancel_after is not None and len(tokens) >= job.cancel_after:
                    end = "cancelled"
                    break
                if delta.finish is not None:
                    end = delta.finish.reason
                    assert delta.finish.output_tokens == len(tokens)
                    assert delta.finish.prompt_tokens == len(job.prompt)
    except (DeadlineExceeded, Cancelled) as error:
        end = type(error).__name__
    if end in (FinishReason.STOP, FinishReason.LENGTH):
        assert tokens == job.expected
        assert (end == FinishReason.LENGTH) == (len(tokens) == job.options["max_tokens"]) or (
            tokens[-1] in job.options["stop_token_ids"]
        )
    else:
        assert tokens == job.expected[: len(tokens)]
    return end


async def run_round(address: str, jobs: list[Job]) -> Counter[str]:
    client = AsyncClient(address)
    try:
        return Counter(await asyncio.gather(*(run_job(client, job) for job in jobs)))
    finally:
        await client.close()


def wait_idle(client: Client, timeout_s: float = 5.0) -> None:
    """Returns when nothing waits or runs and all blocks are free."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        status = client.server_status()
        if (status.waiting, status.running) == (0, 0) and status.blocks_free == status.blocks_total:
            return
        time.sleep(0.02)
    raise AssertionError(f"not idle: {client.server_status()}")


@pytest.mark.parametrize("depth", ["0", "1", "2"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_streams_end_once_and_rightly(depth: str, policy: str) -> None:
    chance = random.Random(7)
    arguments = ("--depth", depth, "--policy", policy)
    with Stack(executor=HASH, scheduler=arguments) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        jobs = [make_job(chance, vocab_size) for _ in range(48)]
        ends = asyncio.run(run_round(stack.address, jobs))
        assert set(ends) <= {FinishReason.STOP, FinishReason.LENGTH}
        assert ends.total() == len(jobs)
        wait_idle(client)
        status = client.server_status()
        assert (status.policy, status.depth) == (policy, int(depth))
        assert status.preemptions > 0, "the pool is meant to be too small"


@pytest.mark.slow
def test_ten_rounds_with_cancels_and_deadlines_leave_nothing_behind() -> None:
    chance = random.Random(11)
    with Stack(executor=SLOW_HASH) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        blocks_free = client.server_status().blocks_free
        sizes = []
        for _ in range(10):
            jobs = [make_job(chance, vocab_size) for _ in range(52)]
            jobs += [make_job(chance, vocab_size, cancel_after=20) for _ in range(8)]
            jobs += [make_job(chance, vocab_size, timeout_s=0.5) for _ in range(4)]
            chance.shuffle(jobs)
            ends = asyncio.run(run_round(stack.address, jobs))
            assert ends["cancelled"] == 8
            assert ends["DeadlineExceeded"] == 4
            assert ends[FinishReason.STOP] + ends[FinishReason.LENGTH] == 52
            wait_idle(client)
            assert client.server_status().blocks_free == blocks_free
            sizes.append(stack.memory_bytes())
        for service, size in sizes[-1].items():
            assert size <= 1.05 * sizes[1][service], (service, sizes)


def test_a_cancel_frees_its_blocks_within_moments() -> None:
    with Stack(executor=(*HASH, "--step-ms", "20")) as stack, Client(stack.address) as client:
        stream = client.generate(list(range(1, 200)), max_tokens=800, ignore_eos=True)
        next(stream)
        assert client.server_status().blocks_free < client.server_status().blocks_total
        stream.close()
        begin = time.monotonic()
        wait_idle(client)
        # Two steps, and the way of the cancel through three processes on a busy machine.
        assert time.monotonic() - begin < 0.5


def test_bad_requests_hurt_nobody() -> None:
    chance = random.Random(3)
    with Stack(executor=SLOW_HASH) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        bad: list[tuple[list[int] | str, GenerateOptions, type[TwostrokeError]]] = [
            ([vocab_size], {}, InvalidRequest),
            ([], {}, InvalidRequest),
            ("", {}, InvalidRequest),
            ([1], {"temperature": float("nan")}, InvalidRequest),
            ([1], {"top_p": 0.0}, InvalidRequest),
            ([1], {"min_p": 2.0}, InvalidRequest),
            ([1], {"max_tokens": 0}, InvalidRequest),
            ([1], {"stop": [""]}, InvalidRequest),
            ([1], {"stop_token_ids": list(range(9))}, InvalidRequest),
            ([1] * 1025, {}, TooLong),
            ([1], {"max_tokens": 100_000}, TooLong),
        ]

        async def everything() -> Counter[str]:
            jobs = [make_job(chance, vocab_size) for _ in range(24)]
            neighbours = asyncio.create_task(run_round(stack.address, jobs))
            asynchronous = AsyncClient(stack.address)
            for prompt, options, error in bad * 5:
                with pytest.raises(error):
                    await asynchronous.complete(prompt, **options)
            await asynchronous.close()
            return await neighbours

        ends = asyncio.run(everything())
        assert ends.total() == ends[FinishReason.STOP] + ends[FinishReason.LENGTH] == 24
        wait_idle(client)


@pytest.mark.parametrize(
    "order",
    [
        ("frontend_svc", "scheduler_svc", "executor_svc"),
        ("scheduler_svc", "frontend_svc", "executor_svc"),
        ("executor_svc", "frontend_svc", "scheduler_svc"),
    ],
)
def test_services_start_in_any_order(order: tuple[str, ...]) -> None:
    with Stack(executor=HASH, order=order, gap_s=0.5) as stack, Client(stack.address) as client:
        answer = client.complete([1, 2, 3], max_tokens=5, temperature=0, ignore_eos=True)
        vocab_size = client.model_info().vocab_size
        expected = expected_tokens([1, 2, 3], vocab_size=vocab_size, max_tokens=5)
        assert list(answer.token_ids) == expected


def test_idle_services_use_next_to_nothing() -> None:
    with Stack(executor=HASH) as stack, Client(stack.address) as client:
        client.complete([1, 2, 3], max_tokens=5, ignore_eos=True)
        time.sleep(1.0)
        begin_s, begin_cpu_s = time.monotonic(), stack.cpu_s()
        time.sleep(5.0)
        share = (stack.cpu_s() - begin_cpu_s) / (time.monotonic() - begin_s)
        assert share < 0.02, f"{share:.1%} of a core"


@pytest.mark.parametrize("victim", ["executor_svc", "scheduler_svc"])
def test_streams_outlive_a_dead_process(victim: str) -> None:
    with Stack(executor=(*HASH, "--step-ms", "5")) as stack, Client(stack.address) as client:
        stream = client.generate([5, 6, 7], max_tokens=900, ignore_eos=True, temperature=0)
        tokens = list(next(stream).token_ids)
        stack.end(victim, signal.SIGKILL)
        stack.start(victim)
        for piece in stream:
            assert piece.first_index == len(tokens), "a gap in the indices"
            tokens += piece.token_ids
        vocab_size = client.model_info().vocab_size
        assert tokens == expected_tokens([5, 6, 7], vocab_size=vocab_size, max_tokens=900)
        stack.wait_ready()
        wait_idle(client)


@pytest.mark.parametrize(
    ("victim", "error"), [("executor_svc", ExecutorLost), ("scheduler_svc", SchedulerLost)]
)
def test_an_outage_has_a_bound(victim: str, error: type[TwostrokeError]) -> None:
    slow, bound = (*HASH, "--step-ms", "20"), ("--outage-timeout", "0.5")
    with Stack(executor=slow, frontend=bound) as stack, Client(stack.address) as client:
        stream = client.generate([5, 6, 7], max_tokens=900, ignore_eos=True, temperature=0)
        next(stream)
        stack.end(victim, signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(error):
            for _ in stream:
                pass
        assert time.monotonic() - begin < 0.5 + 2.0
        stack.start(victim)
        stack.wait_ready()
        wait_idle(client)
