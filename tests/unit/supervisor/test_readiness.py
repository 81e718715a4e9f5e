"""An instance is ready when every front end serves, and the health service says so."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from supervisor_svc.readiness import Readiness
from svc_shell.presence import SERVING, WAITING
from svc_wire.rundir import RunDir

NAMES = ("executor", "scheduler", "frontend", "frontend-2")


class FrontEnds:
    """Two of them, as others see them."""

    def __init__(self, run_dir: Path) -> None:
        place = RunDir(run_dir)
        self._locks = {name: place.lock(name) for name in NAMES[2:]}
        self.health = health.HealthServicer()
        self._server = grpc.server(ThreadPoolExecutor(1))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def show(self, name: str, state: str) -> None:
        os.pwrite(self._locks[name], f"{os.getpid()}\n{state}\n".encode(), 0)

    def close(self) -> None:
        self._server.stop(None).wait()
        for lock in self._locks.values():
            os.close(lock)


@pytest.fixture
def frontends(tmp_path: Path) -> Iterator[FrontEnds]:
    made = FrontEnds(tmp_path / "run")
    yield made
    made.close()


def test_all_of_them_must_serve(tmp_path: Path, frontends: FrontEnds) -> None:
    frontends.health.set("", health_pb2.HealthCheckResponse.SERVING)
    with Readiness(tmp_path / "run", NAMES) as readiness:
        frontends.show("frontend", SERVING)
        assert not readiness.is_serving(frontends.address), "nobody knows anything of the other"
        frontends.show("frontend-2", WAITING)
        assert not readiness.is_serving(frontends.address)
        frontends.show("frontend-2", SERVING)
        assert readiness.is_serving(frontends.address)
        frontends.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert not readiness.is_serving(frontends.address)


def test_where_nobody_listens_nobody_serves(tmp_path: Path, frontends: FrontEnds) -> None:
    for name in NAMES[2:]:
        frontends.show(name, SERVING)
    with Readiness(tmp_path / "run", NAMES) as readiness:
        assert not readiness.is_serving("127.0.0.1:1")
