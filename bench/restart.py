"""How long streams stand still while the scheduler or the executor is replaced under them.

python -m bench.restart [STREAMS]

The hash model with steps of 20 ms; each stream notes the longest time between two of its messages.
"""

import asyncio
import os
import sys
import time

from tests.support.serve import Serve
from twostroke_client import AsyncClient

STREAMS = 200
TOKENS = 1500
STARTED_S = 4.0
ENVIRONMENT = {"TWOSTROKE_STEP_MS": "20", "TWOSTROKE_LOG_LEVEL": "warning"}


async def longest_gap_s(client: AsyncClient, number: int, gaps: dict[int, float]) -> None:
    async with client.generate([number], max_tokens=TOKENS, ignore_eos=True) as stream:
        before = None
        async for _ in stream:
            now = time.monotonic()
            if before is not None:
                gaps[number] = max(gaps.get(number, 0.0), now - before)
            before = now


async def measure(serve: Serve, streams: int) -> None:
    gaps: dict[int, float] = {}
    async with AsyncClient(serve.address) as client, asyncio.TaskGroup() as tasks:
        for number in range(streams):
            tasks.create_task(longest_gap_s(client, number, gaps))
        await asyncio.sleep(STARTED_S)
        assert len(gaps) == streams, "not all have begun"
        for words in ((), ("scheduler",), ("executor",)):
            await asyncio.sleep(1.0)
            gaps.clear()
            if words:
                await asyncio.to_thread(serve.command, "restart", *words)
            await asyncio.sleep(2.0)
            found = sorted(gaps.values())
            what = f"restart {words[0]}" if words else "quiet"
            sys.stdout.write(
                f"{what:<18} {len(found)} streams: longest pause {found[-1] * 1e3:.0f} ms, "
                f"median {found[len(found) // 2] * 1e3:.0f} ms\n"
            )


def main(words: list[str]) -> None:
    os.environ.update(ENVIRONMENT)
    with Serve() as serve:
        asyncio.run(measure(serve, int(words[0]) if words else STREAMS))


if __name__ == "__main__":
    main(sys.argv[1:])
