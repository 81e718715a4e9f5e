"""Whether a port can be had."""

import socket

import pytest

from svc_shell.listening import PORT_MAX, AddressError, bound, plain


def test_one_that_is_taken_is_said_with_what_it_is_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        why = f"cannot show metrics on 127.0.0.1:{port}: Address already in use"
        with pytest.raises(AddressError, match=why):
            bound("127.0.0.1", port, purpose="show metrics")


@pytest.mark.parametrize("port", [PORT_MAX + 1, 2**40])
def test_what_is_no_port_is_not_taken_for_another_one(port: int) -> None:
    with pytest.raises(AddressError, match=f"127.0.0.1:{port}: ports end at 65535"):
        bound("127.0.0.1", port)


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "ä" * 64])
def test_what_is_no_host_name_is_said_in_a_sentence(host: str) -> None:
    with pytest.raises(AddressError, match="that is no host name"):
        bound(host, 0)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("*", "0.0.0.0"),
        ("::1", "::1"),
        ("0::0", "::"),
    ],
)
def test_every_way_to_write_an_address_means_the_same(host: str, address: str) -> None:
    assert plain(host) == address


def test_a_name_of_several_addresses_stays_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(*addresses: str) -> None:
        answers = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (it, 0)) for it in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)

    of("::1", "127.0.0.1")
    assert plain("localhost") == "localhost"
    of("127.0.0.1", "127.0.0.1")
    assert plain("localhost") == "127.0.0.1"
