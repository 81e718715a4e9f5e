"""Where a front end listens.

Several may listen on one port: the kernel gives each new connection to one of them. That is never
by accident: the first one insists that it is alone, and the others are told to join it.
"""

import socket

import grpc.aio

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class AddressError(Exception):
    """The address cannot be listened on. The text is for a person."""


def bind(server: grpc.aio.Server, host: str, port: int, *, joins: bool) -> str:
    """Has `server` listen, if it `joins` beside others; returns the address for this machine.

    Raises AddressError.
    """
    if host.startswith("unix:"):
        raise AddressError(f"cannot listen on {host}: a host name or an IP address is needed")
    # gRPC only says that it failed, so the reason is asked for first.
    _probe(host, port, joins=joins)
    try:
        port = server.add_insecure_port(joined(host, port))
    except RuntimeError as error:
        raise AddressError(f"cannot listen on {joined(host, port)}: {error}") from error
    return joined(_ANY_HOST.get(host, host), port)


def _probe(host: str, port: int, *, joins: bool) -> None:
    address = joined(host, port)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, joins)
            probe.bind(target)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AddressError(f"cannot listen on {address}: {reason}") from error


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
