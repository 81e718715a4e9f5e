"""Where front ends listen unless told otherwise, and whether a port can be had."""

import ipaddress
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
    except UnicodeError as error:  # a part of it is empty or too long
        raise AddressError(f"{cannot} {joined(host, port)}: that is no host name") from error
    except OSError as error:
        raise AddressError(f"{cannot} {joined(host, port)}: {error.strerror}") from error
    return taken


def plain(host: str) -> str:
    """The one address that a host stands for, since 0 or 127.1 are not understood everywhere. A
    name of several is returned as it is, unless all addresses are meant.

    Raises OSError or UnicodeError where `bound` raises AddressError.
    """
    answers = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    first = addresses[0]
    means_all = ipaddress.ip_address(first).is_unspecified
    return first if means_all or len(addresses) == 1 else host


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
