"""Where front ends listen unless told otherwise, and whether a port can be had."""

import socket

DEFAULT_HOST, DEFAULT_PORT, PORT_MAX = "127.0.0.1", 50051, 65535


class AddressError(Exception):
    """The address cannot be listened on. The text is for a person."""


def bound(host: str, port: int, *, joins: bool = False, purpose: str = "listen") -> socket.socket:
    """A socket that has the port and does not listen; to be closed. It `joins` others, or insists
    that it is alone.

    Raises AddressError, which says what the port is for.
    """
    cannot = f"cannot {purpose} on"
    if host.startswith("unix:"):
        raise AddressError(f"{cannot} {host}: a host name or an IP address is needed")
    if port > PORT_MAX:  # only part of its bits would be looked at
        raise AddressError(f"{cannot} {joined(host, port)}: ports end at {PORT_MAX}")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, joins)
            taken.bind(target)
        except BaseException:
            taken.close()
            raise
    except OSError as error:
        raise AddressError(f"{cannot} {joined(host, port)}: {error.strerror}") from error
    return taken


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
