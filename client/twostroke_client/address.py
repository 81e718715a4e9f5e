"""What an address may be: host:port, [IPv6]:port, unix:PATH, or a name of another scheme of gRPC.

gRPC takes almost any text for an address and finds out later, in words of its own and with lines in
its log, or quietly tries port 443. So what cannot be an address is said before a channel is made.
"""

import re

from twostroke_client.errors import InvalidAddress

PORT_MAX = 65535
_PATH_MAX = 107
"""Bytes of a UNIX socket's path, by unix(7)."""

_OTHER_SCHEMES = ("unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:", "xds:")
"""These are passed on as they are: whoever writes one knows gRPC's naming."""
_PARTS = re.compile(r"(?P<host>\[.*\]|[^:]*)(:(?P<port>[^:]*))?")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]")
_PORT = re.compile(r"[0-9]{1,5}")


def checked(address: str) -> str:
    """The address without blanks around it, which files of settings may have. Raises
    InvalidAddress."""
    address = address.strip()
    if not address.lower().startswith(_OTHER_SCHEMES) and (fault := _fault(address)):
        raise InvalidAddress(
            f"{address!r} is no address: {fault} (write host:port, [IPv6]:port or unix:PATH)"
        )
    return address


def _fault(address: str) -> str:
    """What is wrong, empty if nothing is."""
    scheme, _, rest = address.partition(":")
    if address.lower().startswith("unix:"):
        return _path_fault(rest)
    if rest.startswith("//"):
        return f"leave {scheme}:// out"
    parts = _PARTS.fullmatch(address)
    if not parts:
        return "it has too many colons, and an IPv6 address goes in brackets"
    host, port = parts["host"], parts["port"]
    if not host:
        return "there is no host" if address else "it is empty"
    return _port_fault(port) if _HOST.fullmatch(host) else f"{host!r} is no host"


def _path_fault(path: str) -> str:
    if not path.strip("/"):
        return "there is no path"
    if path.startswith("//") and not path.startswith("///"):
        return "after unix:// comes a path that begins with /"
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        return "its path is not UTF-8"
    return "" if length <= _PATH_MAX else f"its path has {length} bytes, {_PATH_MAX} are possible"


def _port_fault(port: str | None) -> str:
    if not port:
        return "there is no port"
    if _PORT.fullmatch(port) and 0 < int(port) <= PORT_MAX:
        return ""
    return f"its port {port} is no number from 1 to {PORT_MAX}"
