"""An instance of fake services that a supervisor in this process keeps running, for tests."""

import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from supervisor_svc import control
from supervisor_svc.stack import Stack, StackConfig
from supervisor_svc.upkeep import Upkeep
from svc_shell.presence import is_up

FAKE = Path(__file__).with_name("fake_service.py")
ROLES = ("executor", "scheduler", "frontend")
SAY_S = 20.0
"""A supervisor answers in a second or two."""


def config(
    run_dir: Path,
    *,
    ready_s: float = 20.0,
    drain_s: float = 1.0,
    frontends: int = 1,
    **behaviour: str,
) -> StackConfig:
    commands = {
        role: [sys.executable, str(FAKE), role, str(run_dir), *behaviour.get(role, "").split()]
        for role in ROLES
    }
    return StackConfig(
        commands, frontends=frontends, ready_timeout_s=ready_s, drain_timeout_s=drain_s
    )


def ignore(up: set[str]) -> None:
    pass


def begin(stack: Stack) -> None:
    """The fake front end is ready on its own; here all are."""
    stack.start()
    stack.wait_ready(ignore)
    until(lambda: all(is_up(stack.run_dir, role) for role in ROLES))


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def upkeep(stack: Stack, said: list[str], restarts_max: int = 0, hang_s: float = 60.0) -> Upkeep:
    return Upkeep(stack, restarts_max=restarts_max, hang_timeout_s=hang_s, tell=said.append)


@contextmanager
def kept(
    run_dir: Path,
    *,
    ready_s: float = 20.0,
    frontends: int = 1,
    restarts_max: int = 3,
    hang_s: float = 60.0,
    **behaviour: str,
) -> Iterator[tuple[Stack, list[str]]]:
    """A stack that is kept running in another thread until the block ends, and what it said."""
    said: list[str] = []
    asked = config(run_dir, ready_s=ready_s, drain_s=1.0, frontends=frontends, **behaviour)
    with Stack(run_dir, asked) as stack, ThreadPoolExecutor(1) as pool:
        begin(stack)
        keeper = upkeep(stack, said, restarts_max, hang_s)
        running = pool.submit(keeper.run)
        until(lambda: say(run_dir, b"") != b"")
        try:
            yield stack, said
        finally:
            assert say(run_dir, msgspec.json.encode(control.Drain())) == b"{}\n"
            running.result(timeout=20)
            keeper.close()


def say(run_dir: Path, line: bytes) -> bytes:
    """The reply to a line on the control socket; none if nobody listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(f"\0{run_dir}/supervisor")
        except ConnectionRefusedError:
            return b""
        connection.settimeout(SAY_S)
        connection.sendall(line + b"\n")
        return connection.recv(1000)
