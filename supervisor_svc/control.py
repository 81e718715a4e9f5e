"""How a running instance is told what to do: one order and one reply on a socket.

    twostroke restart, drain ──── order, a line of JSON ────► supervisor
                             ◄─── reply, a line of JSON ─────
                             ◄─── end of stream: after a drain, when the instance has ended

The socket is named after the runtime directory and has no file (Linux's abstract namespace holds
it), so that nothing is left of it however this process ends. Anybody may have a name there, so both
ends ask the kernel who the other one is. Only the user who runs the instance gives orders, and only
to that user's instance or to root's.
"""

import contextlib
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from supervisor_svc.stack import EXIT_USAGE, StackError
from svc_shell.presence import is_held
from svc_wire.rundir import default_run_dir

ORDER_BYTES_MAX = 64 << 10
ORDER_WAIT_S = 1.0


class Restart(msgspec.Struct, frozen=True, tag=True):
    """Replace a service by a new one, with further options for its command line."""

    role: str
    arguments: tuple[str, ...] = ()
    checks_only: bool = False
    """Only look for faults in them."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Let running answers finish and end the instance."""


Order = Restart | Drain


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    done: str = ""
    """What was done, for a person. Empty after a drain has begun, which takes its time."""
    error: str = ""
    """Why the order was not obeyed; empty if it was."""
    exit_status: int = 1
    """In that case, of whoever gave it: 2 if the order was wrong, 1 if it failed."""


class ControlError(Exception):
    """An order could not be given or was not obeyed. The text is for a person."""

    def __init__(self, text: str, exit_status: int = 1) -> None:
        super().__init__(text)
        self.exit_status = exit_status


class Control:
    """The supervisor's end."""

    def __init__(self, run_dir: Path) -> None:
        """Raises StackError if somebody else has the name."""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(_name(run_dir))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise StackError(
                f"cannot take orders for {run_dir}: {error.strerror or error}"
            ) from error

    def fileno(self) -> int:
        """Readable when somebody has connected."""
        return self._socket.fileno()

    def receive(self) -> "tuple[Order, Answer] | None":
        """The order of somebody who has connected; None if it is none."""
        connection, _ = self._socket.accept()
        answer = Answer(connection)
        try:
            if _uid_of(connection) != os.geteuid():
                raise PermissionError("of another user")
            line = _read_line(connection)
            return msgspec.json.decode(line, type=Order), answer
        except (OSError, msgspec.DecodeError) as error:
            answer.give(Reply(error=f"not an order: {error}"))
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()


class Answer:
    """Where the reply to an order goes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def give(self, reply: Reply, *, keep: bool = False) -> None:
        """Whoever has gone is not told. `keep` leaves the connection open."""
        with contextlib.suppress(OSError):
            self._connection.sendall(msgspec.json.encode(reply) + b"\n")
        if not keep:
            self.close()

    def close(self) -> None:
        """Who has kept the connection open sees the end of it."""
        self._connection.close()


def order(run_dir: Path, order: Order) -> str:
    """Gives an order; returns what was done when it has been obeyed. Raises ControlError."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(_name(run_dir))
            if (uid := _uid_of(connection)) not in (os.geteuid(), 0):
                raise ControlError(f"the instance in {run_dir} is of another user: {uid}")
            connection.sendall(_line(order))
            line = _read_line(connection, timeout_s=None)
            if not line:
                raise ConnectionResetError  # it stopped listening before it came to this order
            reply = msgspec.json.decode(line, type=Reply)
            if isinstance(order, Drain) and not reply.error:
                connection.recv(1)
        except ConnectionError as error:
            raise ControlError(
                f"the instance in {run_dir} takes no orders now: it is starting or shutting down"
            ) from error
        except (OSError, msgspec.DecodeError) as error:
            raise ControlError(f"the instance in {run_dir} does not answer: {error}") from error
    if reply.error:
        raise ControlError(reply.error, reply.exit_status)
    return reply.done


def _line(order: Order) -> bytes:
    try:
        return msgspec.json.encode(order) + b"\n"
    except UnicodeEncodeError as error:
        raise ControlError(f"not UTF-8: {error.object!r}", EXIT_USAGE) from error


def find_instance(given: Path | None) -> Path:
    """The runtime directory of the instance that is meant. Raises ControlError."""
    found = [given] if given else sorted(default_run_dir().glob("serve-*"))
    running = [path for path in found if is_held(path / "supervisor.lock")]
    if len(running) == 1:
        return running[0]
    if not running:
        raise ControlError(f"no instance runs in {given or default_run_dir()}")
    names = ", ".join(map(str, running))
    raise ControlError(f"several instances run; say which one with --run-dir: {names}")


def _name(run_dir: Path) -> str:
    return f"\0{run_dir.absolute()}/supervisor"


def _uid_of(connection: socket.socket) -> int:
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _pid, uid, _gid = struct.unpack("3i", credentials)
    return int(uid)


def _read_line(connection: socket.socket, timeout_s: float | None = ORDER_WAIT_S) -> bytes:
    connection.settimeout(timeout_s)
    line = b""
    while not line.endswith(b"\n") and len(line) < ORDER_BYTES_MAX:
        piece = connection.recv(4096)
        if not piece:
            break
        line += piece
    return line
