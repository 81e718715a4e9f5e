"""Addresses: what can be none is told before anything is tried."""

import pytest
from typer.testing import CliRunner

from twostroke_client import AsyncClient, Client, InvalidAddress
from twostroke_client.address import checked
from twostroke_client.cli import app

GOOD = [
    "localhost:50051",
    "front-end_2.example:1",
    "127.0.0.1:65535",
    "[::1]:50051",
    "[fe80::1%eth0]:50051",
    "unix:/run/twostroke.sock",
    "unix:///run/twostroke.sock",
    "dns:///localhost:50051",
    "ipv4:10.0.0.1:50051,10.0.0.2:50051",
    "DNS:///localhost:50051",
    "UNIX:/run/twostroke.sock",
    "Unix:///run/twostroke.sock",
]
BAD = {
    "": "it is empty",
    "localhost": "there is no port",
    "localhost:": "there is no port",
    ":50051": "there is no host",
    ":abc": "there is no host",
    "localhost:abc": "its port abc is no number from 1 to 65535",
    "host:99999": "its port 99999 is no number from 1 to 65535",
    "host:0": "its port 0 is no number",
    "host:-1": "its port -1 is no number",
    "host:\uff15": "its port",
    "host:5/x": "its port 5/x is no number",
    "a b:1": "'a b' is no host",
    "a@b:1": "'a@b' is no host",
    "[::1]": "there is no port",
    "[::1]:": "there is no port",
    "[::1]:x": "its port x is no number",
    "::1": "it has too many colons, and an IPv6 address goes in brackets",
    "fe80::1": "it has too many colons, and an IPv6 address goes in brackets",
    "::1:50051": "it has too many colons, and an IPv6 address goes in brackets",
    "a:b:1": "it has too many colons",
    "[::1:1": "it has too many colons",
    "[::g]:1": "'[::g]' is no host",
    "[localhost]:1": "'[localhost]' is no host",
    "[]:1": "'[]' is no host",
    "http://localhost:50051": "leave http:// out",
    "unix:": "there is no path",
    "HTTPS://localhost:50051": "leave HTTPS:// out",
    "unix:///": "there is no path",
    "UNIX:": "there is no path",
    "unix:/\udcff": "its path is not UTF-8",
    "unix://nope": "after unix:// comes a path that begins with /",
    "unix:/" + "x" * 107: "its path has 108 bytes, 107 are possible",
}


@pytest.mark.parametrize("address", GOOD)
def test_an_address_is_passed_on_as_it_is(address: str) -> None:
    assert checked(address) == address
    Client(address).close()


def test_blanks_around_an_address_are_no_part_of_it() -> None:
    assert checked(" localhost:50051\r\n") == "localhost:50051"
    assert checked("unix:/run/two stroke.sock ") == "unix:/run/two stroke.sock"


@pytest.mark.parametrize(("address", "fault"), BAD.items())
def test_what_is_wrong_with_an_address_is_said(address: str, fault: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(InvalidAddress) as refused:
            make(address)
        assert str(refused.value).startswith(f"{address!r} is no address: {fault}")


@pytest.mark.parametrize("command", ["status", "chat", "generate hi", "policy list"])
def test_a_wrong_address_is_a_usage_error(command: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), "--address", ""], env={"COLUMNS": "200"})
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "error: '' is no address: it is empty (write host:port, [IPv6]:port or unix:PATH)\n"
    )
