"""The front end's process: binds, serves until it is told to stop, drains.

    bind ──► serve, NOT_SERVING ──► scheduler attached and ready: SERVING
    stop ──► NOT_SERVING, new requests refused, streams in flight finish ──► closed, detached

It binds first, so that health checks have something to ask while everything else comes up. One
that shares a port binds when it can serve, so that nobody gets to it too early; if it replaces
another, it then asks that one to go:

    hand_over ──► the port closed to newcomers, streams in flight finish ──► detached
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
from frontend_svc.address import bind
from frontend_svc.backend import Backend
from frontend_svc.boundary import Boundary
from frontend_svc.generation import GenerationService
from frontend_svc.health import SERVICES, publish_health
from frontend_svc.metrics import Metrics
from frontend_svc.models import ModelService
from frontend_svc.place import Place
from frontend_svc.settings import Settings
from frontend_svc.tally import Tally
from svc_shell.presence import number_of
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
        self._place = Place(run_dir, settings.name)
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
        tally = Tally()
        self._metrics = Metrics(tally, self.backend)
        self._server = _server(settings, self.backend, self._health, self._workers, tally)
        self._background: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._has_successor = False

    def stop(self) -> None:
        """Begins the drain; a second call ends it. May be called from a signal handler."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def hand_over(self) -> None:
        """As `stop`, while others take new requests: for those it is gone at once."""
        if not self._stop.is_set():
            self._has_successor = True
        self.stop()

    def stop_at_once(self) -> None:
        """Without a drain: streams are cut off, with a status."""
        self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Returns after `stop`. Raises AddressError, RunDirError or TokenizerError."""
        self._do(self.backend.link.run())
        try:
            await self._begin()
            await self._unless_stopped(asyncio.Event().wait())
            await self._drain()
        finally:
            await self._metrics.close()  # the port goes with the place
            self._place.leave()
            await self._server.stop(LAST_WORDS_S)
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            self._workers.shutdown(wait=False, cancel_futures=True)

    async def _begin(self) -> None:
        replaces, shares_port = self._settings.replaces, self._settings.shares_port
        if not replaces:
            self._place.take()
            await self._settle_in()
        if replaces or shares_port:  # others serve meanwhile, and would do so better
            await self._unless_stopped(self.backend.wait_ready())
            if self._stop.is_set():
                return
        host, port = self._settings.host, self._settings.port
        address = bind(self._server, host, port, joins=replaces or shares_port)
        await self._server.start()
        if replaces:
            await self._place.take_over()
            await self._settle_in()
        self._place.publish(address)
        self._do(publish_health(self.backend, self._health, self._place))
        log.info("listening", address=address)

    async def _settle_in(self) -> None:
        """Has its place: shows life there, and metrics on the port that goes with it."""
        self._do(self._place.keep_beating())
        settings = self._settings
        if settings.metrics_port:
            # Only a name that was given counts: one in a container of its own has its own ports.
            number = number_of(settings.name)
            await self._metrics.start(settings.host, settings.metrics_port + number - 1)

    def _do(self, work: Coroutine[None, None, None]) -> None:
        """In the background, to the end of this process; if it fails, so does `run`."""
        self._background.append(asyncio.create_task(work))

    async def _unless_stopped(self, work: Coroutine[None, None, object]) -> None:
        """Returns when it is done or when it is time to stop. Raises what fails meanwhile."""
        tasks = [asyncio.create_task(work), asyncio.create_task(self._stop.wait())]
        await asyncio.wait([*tasks, *self._background], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for done in self._background:
            if done.done():
                done.result()

    async def _drain(self) -> None:
        live, timeout_s = self.backend.live, self._settings.drain_timeout_s
        log.info("draining", streams=len(live), timeout_s=timeout_s, successor=self._has_successor)
        self.backend.drain()
        if self._has_successor:
            # Who connects from now on gets to another one, and so does who is connected.
            closing = asyncio.create_task(self._server.stop(timeout_s + 2 * LAST_WORDS_S))
            self._background.append(closing)
            await self._metrics.close()
            self._place.leave()
        await _first_of(live.wait_empty(), self._hurry.wait(), timeout_s)
        if len(live):
            log.warning("cutting off streams", streams=len(live))
            live.leave_all(errors.draining("the server shut down before the end"))
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
    tally: Tally,
) -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=[Boundary(tally)], options=_options(settings))
    rpc.add_GenerationServiceServicer_to_server(
        GenerationService(backend, workers, settings, tally), server
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
        # Others may join, now or when they replace this one; see address.py.
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        # A client behind a broken network path is noticed within 40 s, and its request ends.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients may ping as often as this without being taken for attackers.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ]
