"""How long streams stand still while a service is replaced or dies under them, and how many tokens
are computed again.

python -m bench.restart [--streams N] [--frontends N] [--model smollm2] [--executor-too]

The hash model takes 20 ms a step; each stream notes the longest time between two of its messages.
"kill scheduler" is one that dies, whose successor knows nothing of what is in the KV memory. "kill
frontend" is one of them; an ordered restart cuts off what has not finished after a second.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from executor_svc.tracing import STEP
from tests.support.serve import Serve
from twostroke_client import AsyncClient

TOKENS = 1500
CLIENTS = 8
"""Connections; each gets to some front end."""
WARM_S, SETTLE_S = 1.0, 3.0


class Streams:
    """Streams, each followed by the next, and the longest pause of each since `begin`."""

    def __init__(self, clients: list[AsyncClient], count: int) -> None:
        self._clients = clients
        self._gaps = dict.fromkeys(range(count), 0.0)
        self._heard: dict[int, float] = {}
        self.have_begun = asyncio.Event()

    async def run(self, number: int) -> None:
        client = self._clients[number % len(self._clients)]
        while True:
            async with client.generate([number], max_tokens=TOKENS, ignore_eos=True) as stream:
                async for _ in stream:
                    self._hear(number, time.monotonic())

    def _hear(self, number: int, now: float) -> None:
        self._gaps[number] = max(self._gaps[number], now - self._heard.get(number, now))
        self._heard[number] = now
        if len(self._heard) == len(self._gaps):
            self.have_begun.set()

    def begin(self) -> None:
        self._gaps = dict.fromkeys(self._gaps, 0.0)

    def pauses_ms(self) -> tuple[float, float]:
        """The median and the longest; one that lasts counts up to now."""
        now = time.monotonic()
        gaps = [max(gap, now - self._heard[number]) for number, gap in self._gaps.items()]
        found = np.array(gaps) * 1e3
        return float(np.median(found)), float(found.max())


def recomputed(trace: Path, epoch_before: int) -> int:
    """Tokens that later epochs computed beyond one a row."""
    steps = np.fromfile(trace, STEP)
    later = steps[steps["epoch"] > epoch_before]
    return int((later["tokens"] - later["rows"]).sum())


def last_epoch(trace: Path) -> int:
    return int(np.fromfile(trace, STEP)["epoch"].max())


async def measure(serve: Serve, trace: Path, count: int, whats: list[str]) -> None:
    async with AsyncExitStack() as connected, asyncio.TaskGroup() as tasks:
        clients = [
            await connected.enter_async_context(AsyncClient(serve.address)) for _ in range(CLIENTS)
        ]
        streams = Streams(clients, count)
        running = [tasks.create_task(streams.run(number)) for number in range(count)]
        await streams.have_begun.wait()
        for what in whats:
            await asyncio.sleep(WARM_S)
            streams.begin()
            epoch = last_epoch(trace)
            if what.startswith("kill"):
                serve.find_services()[what.split()[1]].send_signal(signal.SIGKILL)
            elif what != "quiet":
                await asyncio.to_thread(serve.command, *what.split())
            await asyncio.sleep(SETTLE_S)
            median, longest = streams.pauses_ms()
            again = recomputed(trace, epoch)
            sys.stdout.write(
                f"{what:<18} {count} streams: longest pause {longest:.0f} ms, "
                f"median {median:.0f} ms; {again} tokens computed again\n"
            )
        for task in running:
            task.cancel()


def main(
    streams: Annotated[int, typer.Option(help="How many.")] = 200,
    frontends: Annotated[int, typer.Option(help="How many.")] = 2,
    model: Annotated[str, typer.Option(help="As for serve.")] = "hash",
    executor_too: Annotated[bool, typer.Option("--executor-too", help="Replace it, too.")] = False,
) -> None:
    """Replace services under streams and tell how long those pause."""
    whats = ["quiet", "restart scheduler", "kill scheduler", "restart frontend", "kill frontend"]
    if executor_too:
        whats.append("restart executor")
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace")
        os.environ |= {
            "TWOSTROKE_STEP_MS": "20",
            "TWOSTROKE_NUM_BLOCKS": "24576",  # none of them waits for memory
            "TWOSTROKE_LOG_LEVEL": "warning",
            "TWOSTROKE_TRACE": str(trace),
        }
        options = ("--model", model, "--frontends", str(frontends), "--drain-timeout", "1")
        with Serve(*options) as serve:
            asyncio.run(measure(serve, trace, streams, whats))


if __name__ == "__main__":
    typer.run(main)
