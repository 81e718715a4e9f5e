"""A crowd of clients: each always has a stream open, whatever happens to the services meanwhile.

Every stream is compared with the oracle, piece by piece. A request that is turned away before it
has begun is sent again; one that has begun must come to its own end.
"""

import asyncio
import random
import threading
from collections import Counter
from contextlib import AsyncExitStack
from typing import Self

from tests.support.jobs import make_job, run_job
from twostroke_client import AsyncClient, FinishReason
from twostroke_client.retries import RetryPolicy

RETRY = RetryPolicy(attempts=1000, pause_s=0.05)
LAST_WAIT_S = 60.0


class Crowd:
    """Use as a context manager; leaving it lets the last streams end and raises what went wrong."""

    def __init__(
        self, address: str, size: int, *, seed: int, vocab_size: int, clients: int = 1
    ) -> None:
        """The streams share `clients` connections."""
        self._address, self._size, self._clients = address, size, clients
        self._vocab_size = vocab_size
        self._seed = seed
        self._is_over = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="crowd")
        self.ends: Counter[str] = Counter()
        """How streams ended."""

    def check(self) -> bool:
        """Raises what a client found; else False."""
        if self._failed:
            raise self._failed[0]
        return False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._is_over.set()
        self._thread.join(LAST_WAIT_S)
        if error is None:
            assert not self._thread.is_alive(), "streams do not come to an end"
            self.check()
            assert set(self.ends) <= {FinishReason.STOP, FinishReason.LENGTH}, self.ends

    def _run(self) -> None:
        try:
            asyncio.run(self._everybody())
        except BaseException as error:  # noqa: BLE001 - the thread of the test raises it
            self._failed.append(error)

    async def _everybody(self) -> None:
        async with AsyncExitStack() as connected:
            clients = [
                await connected.enter_async_context(AsyncClient(self._address, retry=RETRY))
                for _ in range(self._clients)
            ]
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._size):
                    chance = random.Random(f"{self._seed} {number}")
                    tasks.create_task(self._somebody(clients[number % self._clients], chance))

    async def _somebody(self, client: AsyncClient, chance: random.Random) -> None:
        while not self._is_over.is_set():
            self.ends[await run_job(client, make_job(chance, self._vocab_size))] += 1
