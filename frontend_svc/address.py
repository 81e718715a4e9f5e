"""Where a front end listens.

Several may listen on one port: the kernel gives each new connection to one of them. That is never
by accident: the first one insists that it is alone, and the others are told to join it.
"""

import grpc.aio

from svc_shell.listening import AddressError, bound, joined, plain

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def bind(server: grpc.aio.Server, host: str, port: int, *, joins: bool) -> str:
    """Has `server` listen, if it `joins` beside others; returns the address for this machine.

    Raises AddressError.
    """
    # gRPC only says that it failed, so the reason is asked for first.
    bound(host, port, joins=joins).close()
    try:
        host = plain(host)
        port = server.add_insecure_port(joined(host, port))
    except (RuntimeError, OSError, UnicodeError) as error:
        raise AddressError(f"cannot listen on {joined(host, port)}: {error}") from error
    return joined(_ANY_HOST.get(host, host), port)
