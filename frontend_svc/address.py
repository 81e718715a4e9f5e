"""Where a front end listens, and how others on the machine find it."""

import asyncio
import os
import socket
from pathlib import Path

import grpc.aio

from svc_shell.pulse import PULSE_S, beat

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class AddressError(Exception):
    """The address cannot be listened on. The text is for a person."""


def bind(server: grpc.aio.Server, host: str, port: int) -> str:
    """Has `server` listen; returns the address at which this machine reaches it.

    Raises AddressError.
    """
    # gRPC only says that it failed, so the reason is asked for first.
    _probe(host, port)
    try:
        port = server.add_insecure_port(_joined(host, port))
    except RuntimeError as error:
        raise AddressError(f"cannot listen on {_joined(host, port)}: {error}") from error
    return _joined(_ANY_HOST.get(host, host), port)


def _probe(host: str, port: int) -> None:
    address = _joined(host, port)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AddressError(f"cannot listen on {address}: {reason}") from error


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class AddressFile:
    """A file with the address of the front end that runs, for tools."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._address = ""

    def write(self, address: str) -> None:
        """Atomic: a reader finds all of it or nothing."""
        self._address = address
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        draft.write_text(f"{address}\n")
        draft.replace(self._path)

    async def keep_beating(self) -> None:
        """Shows that the event loop turns (see svc_shell/pulse.py), until cancelled."""
        while True:
            try:
                beat(self._path)
            except FileNotFoundError:  # another front end put its own there and has gone
                self.write(self._address)
            await asyncio.sleep(PULSE_S)

    def remove(self) -> None:
        """Unless another front end has put its own there."""
        try:
            if self._path.read_text().strip() == self._address:
                self._path.unlink()
        except FileNotFoundError:
            pass
