"""The front end's process: binds, serves until it is told to stop, drains.

    bind ──► serve, NOT_SERVING ──► scheduler attached and ready: SERVING
    stop ──► NOT_SERVING, new requests refused, streams in flight finish ──► closed, detached

It binds first, so that health checks have something to ask while everything else comes up.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime

import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from frontend_svc import admin, errors
from frontend_svc.address import AddressFile, bind
from frontend_svc.backend import Backend
from frontend_svc.boundary import Boundary
from frontend_svc.generation import GenerationService
from frontend_svc.health import SERVICES, publish_health
from frontend_svc.models import ModelService
from frontend_svc.settings import Settings
from svc_wire.rundir import RunDir
from twostroke.v1 import generation_pb2_grpc as rpc
from twostroke.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server

WORKERS = 4
"""Threads that tokenise; on one CPU too, so that a long prompt does not hold up short ones."""
LAST_WORDS_S = 1.0
"""For streams that are cut off at the end of the drain: time for their status to go out."""

log = structlog.get_logger(service="frontend")


class Frontend:
    """One front end, from bind to close. Lives on one event loop."""

    def __init__(self, run_dir: RunDir, settings: Settings, now: Callable[[], datetime]) -> None:
        self._settings = settings
        self._address_file = AddressFile(run_dir.path / "frontend.address")
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="tokenise")
        self.backend = Backend(
            run_dir.scheduler_endpoint,
            f"frontend-{os.getpid()}",
            self._workers,
            tokenizer_folder=settings.tokenizer,
            outage_timeout_s=settings.outage_timeout_s,
            now=now,
        )
        self._health = health.aio.HealthServicer()
        self._server = _server(settings, self.backend, self._health, self._workers)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """Begins the drain; a second call ends it. May be called from a signal handler."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def stop_at_once(self) -> None:
        """Without a drain: streams are cut off, with a status."""
        self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Returns after `stop`. Raises AddressError or TokenizerError."""
        address = bind(self._server, self._settings.host, self._settings.port)
        await self._server.start()
        self._address_file.write(address)
        log.info("listening", address=address)
        background = [
            asyncio.create_task(self.backend.link.run()),
            asyncio.create_task(publish_health(self.backend, self._health)),
            asyncio.create_task(self._address_file.keep_beating()),
        ]
        try:
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait([stop, *background], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            for task in background:
                if task.done():
                    task.result()
            await self._drain()
        finally:
            self._address_file.remove()
            await self._server.stop(LAST_WORDS_S)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            self._workers.shutdown(wait=False, cancel_futures=True)

    async def _drain(self) -> None:
        live = self.backend.live
        log.info("draining", streams=len(live), timeout_s=self._settings.drain_timeout_s)
        self.backend.drain()
        await _first_of(live.wait_empty(), self._hurry.wait(), self._settings.drain_timeout_s)
        if len(live):
            log.warning("cutting off streams", streams=len(live))
            live.fail_all(errors.draining("the server shut down before the end"))
            await _first_of(live.wait_empty(), self._hurry.wait(), LAST_WORDS_S)


async def _first_of(
    one: Coroutine[None, None, object], other: Coroutine[None, None, object], timeout_s: float
) -> None:
    tasks = [asyncio.create_task(one), asyncio.create_task(other)]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _server(
    settings: Settings,
    backend: Backend,
    health_servicer: health.aio.HealthServicer,
    workers: Executor,
) -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=[Boundary()], options=_options(settings))
    rpc.add_GenerationServiceServicer_to_server(
        GenerationService(backend, workers, settings), server
    )
    rpc.add_ModelServiceServicer_to_server(ModelService(backend), server)
    names = [*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME]
    if settings.admin or admin.is_private(settings.host):
        add_AdminServiceServicer_to_server(admin.AdminService(backend), server)
        names.append(admin.NAME)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection(names, server)
    return server


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        # A second front end on the port would silently take half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        # A client behind a broken network path is noticed within 40 s, and its request ends.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients may ping as often as this without being taken for attackers.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ]
