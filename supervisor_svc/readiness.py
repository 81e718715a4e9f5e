"""Whether an instance serves: its front ends say so, by the standard health service."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from svc_shell.presence import ADDRESS_FILE, is_serving, is_up, role_of

CHECK_TIMEOUT_S = 2.0


class Readiness:
    """Watches an instance that starts. Close it, or use it as a context manager."""

    def __init__(self, run_dir: Path, names: Sequence[str]) -> None:
        """`names` are those of the services."""
        self._run_dir = run_dir
        self._names = names
        self._channel: grpc.Channel | None = None

    def signs(self) -> set[str]:
        """The names of those that are up."""
        return {name for name in self._names if is_up(self._run_dir, name)}

    def address(self) -> str | None:
        """Where the front ends listen, once one does."""
        try:
            return (self._run_dir / ADDRESS_FILE).read_text().strip() or None
        except FileNotFoundError:
            return None

    def is_serving(self, address: str) -> bool:
        """Whether the instance serves there, with every front end."""
        frontends = [name for name in self._names if role_of(name) == "frontend"]
        if not all(is_serving(self._run_dir, name) for name in frontends):
            return False
        self._channel = self._channel or grpc.insecure_channel(address)
        stub = health_pb2_grpc.HealthStub(self._channel)
        try:
            found = stub.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(found.status == health_pb2.HealthCheckResponse.SERVING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None:
            self._channel.close()
