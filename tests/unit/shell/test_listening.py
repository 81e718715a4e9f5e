"""Whether a port can be had."""

import socket

import pytest

from svc_shell.listening import PORT_MAX, AddressError, bound


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
