"""All services as real processes, with the hash model: every stream ends once and rightly."""

import asyncio
import random
import signal
import time
from collections import Counter

import pytest
import zmq

from executor_svc.hash_model import expected_tokens
from svc_wire.frontend_link import Ping, Unknown, to_frontend, to_scheduler
from tests.support.jobs import make_job, run_round, wait_idle
from tests.support.stack import Stack
from twostroke_client import (
    AsyncClient,
    Client,
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


@pytest.mark.parametrize("depth", ["0", "1", "2"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_streams_end_once_and_rightly(depth: str, policy: str) -> None:
    chance = random.Random(7)
    arguments = ("--depth", depth, "--policy", policy)
    executor = (*HASH, "--num-blocks", "24")
    with Stack(executor=executor, scheduler=arguments) as stack, Client(stack.address) as client:
        vocab_size = client.model_info().vocab_size
        jobs = [make_job(chance, vocab_size) for _ in range(48)]
        ends = asyncio.run(run_round(stack.address, jobs))
        assert set(ends) <= {FinishReason.STOP, FinishReason.LENGTH}
        assert ends.total() == len(jobs)
        wait_idle(client)
        status = client.server_status()
        assert (status.policy, status.depth) == (policy, int(depth))
        assert status.preemptions > 0, "the pool is meant to be too small"


@pytest.mark.parametrize("depth", ["0", "2"])
def test_requests_that_were_swapped_out_go_on(depth: str) -> None:
    chance = random.Random(7)
    executor = (*HASH, "--num-blocks", "24", "--swap-memory", "64KiB")
    with (
        Stack(executor=executor, scheduler=("--depth", depth)) as stack,
        Client(stack.address) as client,
    ):
        vocab_size = client.model_info().vocab_size
        jobs = [make_job(chance, vocab_size) for _ in range(48)]
        ends = asyncio.run(run_round(stack.address, jobs))
        assert ends.total() == len(jobs)
        wait_idle(client)
        status = client.server_status()
        assert status.preemptions >= status.swaps_out >= status.swaps_in > 0, status


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
        stream = client.generate([5, 6, 7], max_tokens=300, ignore_eos=True, temperature=0)
        tokens = list(next(stream).token_ids)
        stack.end(victim, signal.SIGKILL)
        stack.start(victim)
        for piece in stream:
            assert piece.first_index == len(tokens), "a gap in the indices"
            tokens += piece.token_ids
        vocab_size = client.model_info().vocab_size
        assert tokens == expected_tokens([5, 6, 7], vocab_size=vocab_size, max_tokens=300)
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


def test_nonsense_on_the_scheduler_socket_hurts_nobody() -> None:
    with Stack(executor=HASH) as stack, Client(stack.address) as client, zmq.Context() as context:
        with context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            stranger.connect(f"ipc://{stack.run_dir}/scheduler.sock")
            for parts in ([b""], [b"a", b"b"], [b"\xff" * 1000], [b"\x92\xa6Submit", b"", b"c"]):
                stranger.send_multipart(parts)
            stranger.send(to_scheduler.encode(Ping()))
            assert stranger.poll(5000), "the scheduler does not answer any more"
            assert to_frontend.decode(stranger.recv()) == Unknown()
        assert client.complete([1, 2, 3], max_tokens=5, ignore_eos=True).finish.output_tokens == 5
