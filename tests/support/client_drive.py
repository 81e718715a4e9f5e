"""The two clients behind one interface, so that every test of streaming runs on both."""

import asyncio
from typing import Protocol, Unpack

from twostroke_client import AsyncClient, Client, Completion, Delta, GenerateOptions, RetryPolicy

QUICK = RetryPolicy(attempts=3, pause_s=0.01, pause_s_max=0.5)


class Drive(Protocol):
    """Sends a prompt to `address` and returns what one client makes of it."""

    def pieces(self, address: str, *, take: int | None = None) -> list[Delta]:
        """Reads all pieces, or `take` of them before closing the stream."""

    def complete(
        self,
        address: str,
        *,
        timeout_s: float | None = None,
        retry: RetryPolicy = QUICK,
        **options: Unpack[GenerateOptions],
    ) -> Completion: ...


class SyncDrive:
    def pieces(self, address: str, *, take: int | None = None) -> list[Delta]:
        with Client(address, retry=QUICK) as client, client.generate("hi") as stream:
            return list(stream) if take is None else [next(stream) for _ in range(take)]

    def complete(
        self,
        address: str,
        *,
        timeout_s: float | None = None,
        retry: RetryPolicy = QUICK,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        with Client(address, retry=retry) as client:
            return client.complete("hi", timeout_s=timeout_s, **options)


class AsyncDrive:
    def pieces(self, address: str, *, take: int | None = None) -> list[Delta]:
        async def run() -> list[Delta]:
            async with (
                AsyncClient(address, retry=QUICK) as client,
                client.generate("hi") as stream,
            ):
                if take is None:
                    return [piece async for piece in stream]
                return [await anext(stream) for _ in range(take)]

        return asyncio.run(run())

    def complete(
        self,
        address: str,
        *,
        timeout_s: float | None = None,
        retry: RetryPolicy = QUICK,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        async def run() -> Completion:
            async with AsyncClient(address, retry=retry) as client:
                return await client.complete("hi", timeout_s=timeout_s, **options)

        return asyncio.run(run())
