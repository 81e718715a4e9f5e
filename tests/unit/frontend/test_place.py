"""Where a front end is found: its name, its port, the address that it publishes."""

import asyncio
import os
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest

from frontend_svc.place import Place
from frontend_svc.server import Frontend
from frontend_svc.settings import Settings
from svc_shell.listening import AddressError
from svc_shell.presence import holder, is_held, is_serving, is_up
from svc_wire.errors import LockHeld
from svc_wire.ids import FinishReason
from svc_wire.rundir import RunDir
from tests.support.fake_scheduler import status
from tests.support.frontend import (
    NOON,
    NOT_SERVING,
    SERVING,
    begun,
    frontend_alone,
    health_of,
    in_loop,
    next_message,
    receive,
    running,
    until,
)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "localhost"])
@in_loop
async def test_an_address_in_use_is_said_to_be_in_use(run_dir: Path, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken:
        taken.bind((host, 0))
        taken.listen()
        settings = Settings(host=host, port=taken.getsockname()[1])
        with pytest.raises(AddressError, match=r"cannot listen on .*: Address already in use"):
            await Frontend(RunDir(run_dir), settings, lambda: NOON).run()


@in_loop
async def test_two_front_ends_do_not_share_a_port(run_dir: Path) -> None:
    async with frontend_alone(run_dir) as (_, address):
        port = int(address.rpartition(":")[2])
        with pytest.raises(AddressError, match="in use"):
            await Frontend(RunDir(run_dir), Settings(port=port), lambda: NOON).run()
        async with grpc.aio.insecure_channel(address) as channel:
            assert await health_of(channel) == NOT_SERVING, "the first one goes on"
        assert (run_dir / "frontend.address").read_text() == f"{address}\n"


@in_loop
async def test_front_ends_that_are_told_to_share_a_port_do(run_dir: Path) -> None:
    async with running(run_dir) as it:
        await it.scheduler.tell(status(ready=False, reason="no executor is ready"))
        port = int(it.address.rpartition(":")[2])
        second = Frontend(RunDir(run_dir), Settings(port=port, shares_port=True), lambda: NOON)
        running_second = asyncio.create_task(second.run())
        await until(lambda: second.backend.link.is_up)
        assert not is_up(run_dir, "frontend-2"), "who would get to it would be refused"
        await it.scheduler.tell(status())
        await until(lambda: is_serving(run_dir, "frontend-2"))
        assert is_serving(run_dir, "frontend"), "each holds a lock of its own"
        second.stop()
        await running_second
        assert not is_up(run_dir, "frontend-2")
        assert (run_dir / "frontend.address").read_text() == f"{it.address}\n"
    assert not (run_dir / "frontend.address").exists(), "the last one removes it"


@in_loop
async def test_a_successor_takes_name_and_port_when_it_can_serve(run_dir: Path) -> None:
    async with begun(run_dir) as (it, call, key):
        await it.scheduler.tokens(key, b"a")
        first = await next_message(call)
        it.frontend.hand_over()
        await until(lambda: not is_held(run_dir / "frontend.lock"))
        settings = Settings(port=int(it.address.rpartition(":")[2]), shares_port=True)
        successor = Frontend(RunDir(run_dir), settings, lambda: NOON)
        running_successor = asyncio.create_task(successor.run())
        await until(lambda: is_serving(run_dir, "frontend"))
        # On the connection that has the stream, too: the old one has closed it to newcomers.
        assert await health_of(it.channel) == SERVING
        await it.scheduler.tokens(key, b"b", FinishReason.LENGTH)
        assert (await receive(call, first)).text == "ab", "what was running has come to its end"
        successor.stop()
        await running_successor


@pytest.mark.parametrize("serves", [True, False])
def test_what_a_front_end_shows(tmp_path: Path, serves: bool) -> None:
    run_dir = RunDir(tmp_path / "r")
    place = Place(run_dir, "")
    place.take()
    assert not is_up(run_dir.path, "frontend"), "it does not listen yet"
    place.show(serves=not serves)
    place.show(serves=serves)
    assert is_up(run_dir.path, "frontend")
    assert is_serving(run_dir.path, "frontend") is serves
    assert holder(run_dir.path, "frontend") == os.getpid()
    place.leave()
    place.show(serves=True)
    assert not is_up(run_dir.path, "frontend")
    assert holder(run_dir.path, "frontend") is None


def test_a_name_that_is_given_is_not_shared(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "r")
    place = Place(run_dir, "frontend-7")
    place.take()
    with pytest.raises(LockHeld, match="another frontend-7 runs"):
        Place(run_dir, "frontend-7").take()
    place.leave()


def test_an_address_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "r")
    place = Place(run_dir, "")
    (run_dir.path / "frontend.address").mkdir()
    with pytest.raises(AddressError, match=r"cannot write .*frontend\.address: Is a directory"):
        place.publish("a:1")
    assert [path.name for path in run_dir.path.iterdir()] == ["frontend.address"], "no draft"


@in_loop
async def test_a_host_that_is_none_is_said_to_be_none(run_dir: Path) -> None:
    settings = Settings(host="no.such.host.invalid", port=0)
    with pytest.raises(AddressError, match=r"cannot listen on no\.such\.host\.invalid:0"):
        await Frontend(RunDir(run_dir), settings, lambda: NOON).run()


@in_loop
async def test_a_socket_file_is_no_host(run_dir: Path) -> None:
    frontend = Frontend(RunDir(run_dir), Settings(host="unix:/x"), lambda: NOON)
    with pytest.raises(AddressError, match="a host name or an IP address is needed"):
        await frontend.run()


@pytest.mark.parametrize(
    ("host", "reached"), [("0.0.0.0", "127.0.0.1:"), ("::", "[::1]:"), ("::1", "[::1]:")]
)
@in_loop
async def test_the_address_file_holds_what_can_be_dialled(
    run_dir: Path, host: str, reached: str
) -> None:
    async with frontend_alone(run_dir, Settings(host=host)) as (_, address):
        assert address.startswith(reached)
        async with grpc.aio.insecure_channel(address) as channel:
            assert await health_of(channel) == NOT_SERVING
