"""What only one of the two clients has: garbage collection, threads, tasks."""

import asyncio
import gc
import threading

import pytest

import twostroke_client as ts
from tests.support.fake_server import FakeServer, first


def stuck() -> FakeServer:
    return FakeServer([first("He", [10]), threading.Event()])


def test_a_dropped_stream_is_cancelled() -> None:
    with stuck() as server, ts.Client(server.address) as client:
        for piece in client.generate("hi"):
            assert piece.text == "He"
            break
        gc.collect()
        assert server.cancelled.wait(5)


def test_a_closed_stream_is_at_its_end() -> None:
    with stuck() as server, ts.Client(server.address) as client:
        stream = client.generate("hi")
        next(stream)
        stream.close()
        assert list(stream) == []


def test_a_failed_stream_is_at_its_end() -> None:
    with FakeServer([]) as server, ts.Client(server.address) as client:
        stream = client.generate("hi")
        with pytest.raises(ts.ProtocolError):
            next(stream)
        assert list(stream) == []


def test_requests_run_at_once_although_read_in_turn() -> None:
    with FakeServer() as server, ts.Client(server.address) as client:
        streams = [client.generate("hi") for _ in range(3)]
        assert server.wait_for_requests(3), "all three arrived before the first one was read"
        assert ["".join(piece.text for piece in stream) for stream in streams] == ["Hello!"] * 3


def test_cancelling_the_task_cancels_the_request() -> None:
    async def run(server: FakeServer) -> None:
        async with ts.AsyncClient(server.address) as client:
            stream = client.generate("hi")
            await anext(stream)
            task = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.cancelled.wait, 5)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    with stuck() as server:
        asyncio.run(run(server))


def test_closing_from_another_task_does_not_cancel_the_reader() -> None:
    async def run(server: FakeServer) -> None:
        async with ts.AsyncClient(server.address) as client:
            stream = client.generate("hi")
            await anext(stream)
            task = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            await stream.aclose()
            with pytest.raises(ts.Cancelled):
                await task

    with stuck() as server:
        asyncio.run(run(server))


def test_info_calls() -> None:
    async def run(address: str) -> tuple[ts.ModelInfo, ts.ServerStatus]:
        async with ts.AsyncClient(address) as client:
            return await client.model_info(), await client.server_status()

    with FakeServer() as server:
        with ts.Client(server.address) as client:
            found = client.model_info(), client.server_status()
        assert asyncio.run(run(server.address)) == found
    model, status = found
    assert (model.name, model.eos_token_ids, model.sequence_length_max) == ("fake", (2,), 128)
    assert (status.ready, status.policy, status.depth) == (True, "fcfs", 1)
    with ts.Client(server.address) as client, pytest.raises(ts.Unreachable):
        client.server_status()
