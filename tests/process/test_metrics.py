"""Metrics of real processes: they agree with what was done, and with what the scheduler knows."""

import asyncio
import random
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.support.jobs import make_job, run_round, wait_idle
from tests.support.scrape import Scrape, free_port
from tests.support.serve import Serve, wait_until
from tests.support.stack import Stack
from twostroke_client import Client, InvalidRequest

pytestmark = pytest.mark.process

HASH = ("--model", "hash", "--num-blocks", "256", "--step-ms", "5")
STEP_S = 0.005


def scraped(port: int, holds: Callable[[Scrape], bool], timeout_s: float = 20.0) -> Scrape:
    """The first scrape of which it holds; the scheduler's numbers come once a second."""
    seen: list[Scrape] = []

    def look() -> bool:
        with suppress(OSError):
            seen.append(Scrape(port))
        return bool(seen) and holds(seen[-1])

    assert wait_until(look, timeout_s)
    return seen[-1]


def test_everything_is_counted_once() -> None:
    port, chance = free_port(), random.Random(3)
    options = ("--metrics-port", str(port))
    with Stack(frontend=options) as stack, Client(stack.address) as client:
        jobs = [make_job(chance, client.model_info().vocab_size) for _ in range(40)]
        ends = asyncio.run(run_round(stack.address, jobs))
        for _ in range(3):
            with pytest.raises(InvalidRequest):
                client.complete("x", temperature=-1)
        wait_idle(client)
        steps = client.server_status().steps
        seen = scraped(port, lambda seen: seen.value("scheduler_steps_total") == steps)
    tokens = sum(len(job.expected) for job in jobs)
    assert seen.value("ready") == 1
    assert seen.value("requests_started_total", method="Generate") == 43
    assert seen.value("requests_ended_total", method="Generate", code="OK", reason="") == 40
    invalid = {"method": "Generate", "code": "INVALID_ARGUMENT", "reason": "INVALID_FIELD"}
    assert seen.value("requests_ended_total", **invalid) == 3
    for reason, count in ends.items():
        assert seen.value("answers_total", reason=str(reason).upper()) == count
    assert seen.value("prompt_tokens_total") == sum(len(job.prompt) for job in jobs)
    assert seen.value("output_tokens_total") == tokens
    assert seen.value("scheduler_output_tokens_total") == tokens
    assert seen.value("first_token_seconds_count") == 40
    assert seen.value("answer_seconds_count") == 40
    assert (seen.value("scheduler_running"), seen.value("streams")) == (0, 0)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_overlap_can_be_seen(depth: int) -> None:
    """Ahead of the device, batches lie ready for most of a step; else they come after it."""
    port = free_port()
    with (
        Stack(
            executor=HASH,
            scheduler=("--depth", str(depth)),
            frontend=("--metrics-port", str(port)),
        ) as stack,
        Client(stack.address) as client,
    ):
        client.complete([1, 2, 3], max_tokens=200, ignore_eos=True)
        seen = scraped(port, lambda seen: seen.value("scheduler_steps_total") >= 200)
        status = client.server_status()
    chained = seen.value("step_gap_seconds_count")
    assert chained == seen.value("step_lead_seconds_count") == 199, "all but the first"
    lead_s = seen.value("step_lead_seconds_sum") / chained
    gap_s = seen.value("step_gap_seconds_sum") / chained
    assert seen.value("executor_busy_seconds_total") == pytest.approx(200 * STEP_S)
    if depth:
        assert lead_s > 0.3 * STEP_S
        assert status.host_lead_ms > 0.3 * STEP_S * 1e3
    else:
        assert lead_s < 1e-6
        assert gap_s > 20e-6, "a step is planned when the one before has come back"
        assert status.step_gap_ms_max >= status.step_gap_ms > 0.02


def test_without_a_scheduler_the_rest_is_shown() -> None:
    port = free_port()
    with Stack(frontend=("--metrics-port", str(port))) as stack, Client(stack.address) as client:
        client.complete([1, 2, 3], max_tokens=4, ignore_eos=True)
        assert scraped(port, lambda seen: seen.value("ready") == 1).value("scheduler_kv_blocks")
        stack.end("scheduler_svc", signal.SIGKILL)
        seen = scraped(port, lambda seen: not seen.value("ready"))
        assert not any("scheduler" in name for name in seen.names)
        assert seen.value("answers_total", reason="LENGTH") == 1
        stack.start("scheduler_svc")
        stack.wait_ready()
        seen = scraped(port, lambda seen: seen.value("ready") == 1)
        assert seen.value("scheduler_kv_blocks") > 0
        assert seen.value("scheduler_epochs_lost_total") == 0


def test_the_deaths_of_executors_are_counted() -> None:
    port = free_port()
    with Stack(frontend=("--metrics-port", str(port))) as stack:
        for deaths in (1, 2):
            stack.end("executor_svc", signal.SIGKILL)
            lost = scraped(port, lambda seen: not seen.value("ready"))
            assert lost.value("scheduler_epochs_lost_total") == deaths
            stack.start("executor_svc")
            stack.wait_ready()


def test_front_ends_have_a_port_each_and_keep_it() -> None:
    port = free_port(2)
    options = ("--frontends", "2", "--metrics-port", str(port))
    with Serve(*options) as serve:

        def answer(_: int) -> None:
            with Client(serve.address) as client:
                client.complete([1, 2, 3], max_tokens=5, ignore_eos=True)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(answer, range(24)))
        both = [scraped(p, lambda seen: seen.value("ready") == 1) for p in (port, port + 1)]
        assert sum(seen.value("answers_total", reason="LENGTH") for seen in both) == 24
        assert sum(seen.value("output_tokens_total") for seen in both) == 120
        assert serve.command("restart", "frontend") == (0, "")
        for p in (port, port + 1):
            seen = scraped(p, lambda seen: seen.value("ready") == 1)
            assert seen.value("answers_total", reason="LENGTH") == 0, "it begins anew"


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with Serve("--metrics-port", str(port), wait=False) as serve:
            assert serve.wait(30) == 1
            assert f"cannot show metrics on 127.0.0.1:{port}: Address already in" in serve.errors()
