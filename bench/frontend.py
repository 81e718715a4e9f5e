"""What a front end carries: streams x steps through a real port. `python -m bench.frontend`

A fake scheduler brings one token a stream and step, at a fixed pace; a client process reads all
streams. Per pace, one line: what was delivered, how many messages that took (under load pending
tokens share one), the front end's share of a core, what a whole core would carry at that price,
and the delay from the scheduler's socket to the client. Client and scheduler want the same cores:
on a small machine the delays are theirs too, while the price per message is the front end's own.
"""

import asyncio
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import grpc.aio
import numpy as np
import numpy.typing as npt
import psutil
import typer

from tests.support.fake_scheduler import FakeScheduler
from tests.support.tmpfs import private_dir
from twostroke.v1 import generation_pb2 as pb

GENERATE = "/twostroke.v1.GenerationService/Generate"
TEXT = b"The quick brown fox jumps over the lazy dog. "

Arrivals = npt.NDArray[np.float64]
"""[messages, 2]: index of a message's last token, monotonic seconds of its arrival."""


def read_streams(address: str, streams: int, tokens: int, stops: int) -> Arrivals:
    """A client process: reads that many streams at once to their end."""

    async def one(channel: grpc.aio.Channel) -> list[tuple[int, float]]:
        call = channel.unary_stream(
            GENERATE,
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        request = pb.GenerateRequest(text="bench", stop=pb.StopCriteria(max_tokens=tokens))
        request.stop.strings.extend(f"never {index}" for index in range(stops))
        arrivals = [
            (message.first_index + len(message.token_ids) - 1, time.monotonic())
            async for message in call(request)
        ]
        assert arrivals[-1][0] == tokens - 1, "not all of it came"
        return arrivals

    async def all_of_them() -> Arrivals:
        async with grpc.aio.insecure_channel(address) as channel:
            found = await asyncio.gather(*(one(channel) for _ in range(streams)))
        return np.array([arrival for arrivals in found for arrival in arrivals])

    return asyncio.run(all_of_them())


async def push(scheduler: FakeScheduler, streams: int, tokens: int, step_s: float) -> list[float]:
    """Brings all tokens at the pace; returns when each step was sent."""
    await scheduler.submitted(streams)
    sent, due = [], time.monotonic()
    for index in range(tokens):
        due += step_s
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        sent.append(time.monotonic())
        await scheduler.step(TEXT[index % len(TEXT)], last=index == tokens - 1)
    return sent


def line(step_s: float, arrivals: Arrivals, sent: list[float], streams: int, cpu_s: float) -> str:
    tokens, messages = streams * len(sent), len(arrivals)
    seconds = arrivals[:, 1].max() - sent[0]
    delays = (arrivals[:, 1] - np.array(sent)[arrivals[:, 0].astype(int)]) * 1e3
    p50, p99 = np.percentile(delays, [50, 99])
    return (
        f"{step_s * 1e3:>8.1f}{tokens / seconds:>11.0f}{messages / seconds:>11.0f}"
        f"{tokens / messages:>12.2f}{cpu_s / seconds:>11.2f}{cpu_s / messages * 1e6:>11.1f}"
        f"{tokens / cpu_s:>14.0f}{p50:>9.1f}{p99:>9.1f}"
    )


async def measure(streams: int, steps_ms: list[float], seconds: float, stops: int) -> None:
    sys.stdout.write(
        f"{'step ms':>8}{'tokens/s':>11}{'messages/s':>11}{'tokens/msg':>12}{'CPU share':>11}"
        f"{'us/msg':>11}{'tokens/core-s':>14}{'p50 ms':>9}{'p99 ms':>9}\n"
    )
    spawn = multiprocessing.get_context("spawn")
    with private_dir() as run_dir, ProcessPoolExecutor(1, spawn) as clients:
        async with FakeScheduler(run_dir, lambda _: None, sequence_len_max=10_000_000) as scheduler:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "frontend_svc", "--run-dir", str(run_dir), "--port", "0"),
                stderr=subprocess.DEVNULL,
            )
            address = await _serving(run_dir, scheduler)
            for step_ms in steps_ms:
                tokens = int(seconds * 1e3 / step_ms)
                usage = psutil.Process(process.pid).cpu_times
                before = usage()
                reading = asyncio.get_running_loop().run_in_executor(
                    clients, read_streams, address, streams, tokens, stops
                )
                sent = await push(scheduler, streams, tokens, step_ms / 1e3)
                arrivals = await reading
                after = usage()
                cpu_s = after.user + after.system - before.user - before.system
                sys.stdout.write(line(step_ms / 1e3, arrivals, sent, streams, cpu_s) + "\n")
            process.terminate()
            await process.wait()


async def _serving(run_dir: Path, scheduler: FakeScheduler) -> str:
    await scheduler.until(lambda: scheduler.attaches > 0)
    return (run_dir / "frontend.address").read_text().strip()


def main(
    streams: Annotated[int, typer.Option(help="Streams at once.")] = 64,
    step_ms: Annotated[list[float], typer.Option(help="Pace; may be given several times.")] = [  # noqa: B006
        20.0,
        10.0,
        5.0,
        2.0,
        1.0,
    ],
    seconds: Annotated[float, typer.Option(help="Length of each run.")] = 5.0,
    stops: Annotated[int, typer.Option(help="Stop strings of each request; none matches.")] = 0,
) -> None:
    asyncio.run(measure(streams, step_ms, seconds, stops))


if __name__ == "__main__":
    typer.run(main)
