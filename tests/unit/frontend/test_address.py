"""Where a front end listens, however its address is written."""

import asyncio

import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from frontend_svc.address import bind
from frontend_svc.metrics import _listen
from svc_shell.listening import AddressError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "0", "*"])
def test_grpc_gets_what_was_looked_up(host: str) -> None:
    async def bound() -> str:
        server = grpc.aio.server()
        address = bind(server, host, 0, joins=False)
        await server.stop(0)
        return address

    address, _, port = asyncio.run(bound()).rpartition(":")
    assert address == "127.0.0.1"
    assert int(port) > 0


def test_what_is_no_host_name_is_an_address_error_also_for_metrics() -> None:
    with pytest.raises(AddressError, match=r"cannot show metrics on a\.\.b:0"):
        _listen("a..b", 0, CollectorRegistry())


@pytest.mark.parametrize("host", ["127.1", "0", "*"])
def test_metrics_are_shown_there_too(host: str) -> None:
    with _listen(host, 0, CollectorRegistry()) as server:
        assert server.server_address[0] in ("127.0.0.1", "0.0.0.0")
