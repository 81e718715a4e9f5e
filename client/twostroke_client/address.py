"""What an address may be: host:port, [IPv6]:port, unix:PATH, or a name of another scheme of gRPC.

gRPC takes almost any text for an address and finds out later, in words of its own and with lines in
its log, or quietly tries port 443. So what cannot be an address is said before a channel is made.
"""

import re
from ipaddress import AddressValueError, IPv6Address

from twostroke_client.errors import InvalidAddress

PORT_MAX = 65535

_OTHER_SCHEMES = ("unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:", "xds:")
"""These are passed on as they are: whoever writes one knows gRPC's naming."""
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_PORT = re.compile(r"[0-9]{1,5}")


def checked(address: str) -> str:
    """The address as it is. Raises InvalidAddress."""
    if not address.startswith(_OTHER_SCHEMES) and (fault := _fault(address)):
        raise InvalidAddress(
            f"{address!r} is no address: {fault} (write host:port, [IPv6]:port or unix:PATH)"
        )
    return address


def _fault(address: str) -> str:
    """What is wrong, empty if nothing is."""
    scheme, slashes, _ = address.partition("://")
    if address.startswith("unix:"):
        return "" if address.removeprefix("unix:").strip("/") else "there is no path"
    if slashes:
        return f"leave {scheme}:// out"
    host, colon, port = address.rpartition(":")
    if not colon:
        return "there is no port" if address else "it is empty"
    return _host_fault(host) or _port_fault(port)


def _host_fault(host: str) -> str:
    if not host:
        return "there is no host"
    if host.startswith("[") and host.endswith("]"):
        return "" if _is_ipv6(host[1:-1]) else f"{host} is no IPv6 address"
    if ":" in host:
        return "an IPv6 address goes in brackets" if _is_ipv6(host) else "it has too many colons"
    return "" if _HOST.fullmatch(host) else f"{host!r} is no host name"


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return True


def _port_fault(port: str) -> str:
    if not port:
        return "there is no port"
    if _PORT.fullmatch(port) and 0 < int(port) <= PORT_MAX:
        return ""
    return f"its port {port} is no number from 1 to {PORT_MAX}"
