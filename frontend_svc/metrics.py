"""Metrics for Prometheus, over HTTP on a port of their own.

A scrape is answered in a thread, from numbers that lie ready: what this front end has counted and
what the scheduler said last, which is a second old (the link asks that often). So it waits for
nobody and is answered whatever has died; what nobody knows is left out, `twostroke_ready` is 0.
"""

import asyncio
import importlib.metadata
import socket
import threading
from collections.abc import Iterator, Mapping
from itertools import accumulate
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from frontend_svc.backend import Backend
from frontend_svc.tally import Histogram, Labelled, Tally
from svc_shell.listening import AddressError, joined, plain
from svc_wire.frontend_link import Pace, Status

STATUS_AGE_MAX_S = 5.0
"""What the scheduler said is no condition any more if it is older."""
CLIENT_WAIT_S = 10.0
"""For one who connects and then asks nothing, or does not read the answer."""

log = structlog.get_logger(service="frontend")


class Metrics:
    """The HTTP server, from `start` to `close`."""

    def __init__(self, tally: Tally, backend: Backend) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Page(tally, backend))
        ProcessCollector(registry=self._registry)
        self._server: WSGIServer | None = None

    async def start(self, host: str, port: int) -> None:
        """Raises AddressError."""
        # In a thread, since http.server looks up the name of the host.
        self._server = await asyncio.to_thread(_listen, host, port, self._registry)
        serve = threading.Thread(target=self._server.serve_forever, daemon=True, name="metrics")
        serve.start()
        log.info("metrics", address=joined(host, self._server.server_port))

    async def close(self) -> None:
        """The port is free afterwards. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.shutdown)
            server.server_close()


def _listen(host: str, port: int, registry: CollectorRegistry) -> WSGIServer:
    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    try:
        host = plain(host)
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        Server.address_family = family
        return make_server(host, port, make_wsgi_app(registry), Server, _Handler)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AddressError(f"cannot show metrics on {joined(host, port)}: {reason}") from error


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_WAIT_S

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no news."""


class Page(Collector):
    """All metrics, made anew for each scrape."""

    def __init__(self, tally: Tally, backend: Backend) -> None:
        self._tally = tally
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        status = self._backend.last_status(STATUS_AGE_MAX_S)
        ready = status is not None and not self._backend.reason
        yield _gauge("ready", "Whether requests are taken.", ready)
        yield _info("version", "The build.", {"version": importlib.metadata.version("twostroke")})
        if (model := self._backend.model) is not None:
            facts = {"model": model.info.name, "dtype": model.info.dtype}
            yield _info("model", "What is served.", facts | {"device": model.info.device})
        yield from self._requests()
        yield from self._answers()
        if status is not None:
            yield from _scheduler(status)
            yield from _executor(status.pace)

    def _requests(self) -> Iterator[Metric]:
        tally = self._tally
        yield _gauge("streams", "Requests that are with the scheduler.", len(self._backend.live))
        # What has ended is read first, so that it is never more than what has started.
        labels, told = ("method", "code", "reason"), "Calls by status; the reason is ErrorInfo's."
        ended = _labelled("requests_ended", told, labels, tally.ended)
        yield _labelled("requests_started", "Calls.", ("method",), tally.started)
        yield ended

    def _answers(self) -> Iterator[Metric]:
        tally = self._tally
        yield _labelled("answers", "Good ends, by finish reason.", ("reason",), tally.answers)
        yield _counter("prompt_tokens", "Prompt tokens of these answers.", tally.prompt_tokens)
        yield _counter("cached_prompt_tokens", "Those from the prefix cache.", tally.cached_tokens)
        yield _counter("output_tokens", "Output tokens of all requests.", tally.output_tokens)
        for name, told, histogram in (
            ("queued", "From arrival to the first step.", tally.queued),
            ("first_token", "From arrival to the first token.", tally.first_token),
            ("token_interval", "Between tokens, mean of an answer.", tally.token_interval),
            ("stream_pause", "The longest pause in an answer.", tally.pause),
            ("answer", "From arrival to the end.", tally.duration),
        ):
            yield _histogram(f"{name}_seconds", told, histogram)


def _scheduler(status: Status) -> Iterator[Metric]:
    yield _info("scheduler_policy", "The policy in force.", {"policy": status.policy})
    for name, told, now in (
        ("depth", "Steps planned ahead of the one that is computed.", status.depth),
        ("waiting", "Requests that wait for their first or next step.", status.waiting),
        ("running", "Requests in the batch.", status.running),
        ("kv_blocks", "KV blocks in all.", status.blocks_total),
        ("kv_blocks_free", "KV blocks free or reclaimable.", status.blocks_free),
    ):
        yield _gauge(f"scheduler_{name}", told, now)
    for name, told, total in (
        ("steps", "Steps.", status.steps),
        ("output_tokens", "Output tokens.", status.tokens),
        ("preemptions", "Pre-emptions.", status.preemptions),
        ("swaps_out", "Pre-emptions that copied KV to host memory.", status.swaps_out),
        ("swaps_in", "Requests that went on from such a copy.", status.swaps_in),
        ("policy_faults", "Policies that were replaced by fcfs.", status.policy_faults),
        ("epochs_lost", "Executors that died, failed or were replaced.", status.epochs_lost),
    ):
        yield _counter(f"scheduler_{name}", f"{told} Since the scheduler's start.", total)


def _executor(pace: Pace) -> Iterator[Metric]:
    yield _gauge("executor_busy_ratio", "Busy share of the last seconds.", pace.busy_share)
    yield _counter("executor_busy_seconds", "Time spent computing.", pace.busy_ns_total / 1e9)
    for name, told, total_ns in (
        ("lead", "How long before it was needed a batch lay ready.", pace.lead_ns_total),
        ("gap", "Between two steps, where work was there.", pace.gap_ns_total),
    ):
        yield SummaryMetricFamily(
            f"twostroke_step_{name}_seconds", told, pace.chained_total, total_ns / 1e9
        )
    longest_s = pace.gap_ns_max / 1e9
    yield _gauge("step_gap_recent_max_seconds", "The longest gap of the last seconds.", longest_s)


# -- families --------------------------------------------------------------------------------------


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(f"twostroke_{name}", told, float(value))


def _counter(name: str, told: str, value: float) -> Metric:
    return CounterMetricFamily(f"twostroke_{name}", told, value)


def _info(name: str, told: str, facts: Mapping[str, str]) -> Metric:
    return InfoMetricFamily(f"twostroke_{name}", told, dict(facts))


def _labelled(name: str, told: str, labels: tuple[str, ...], counts: Labelled) -> Metric:
    family = CounterMetricFamily(f"twostroke_{name}", told, labels=labels)
    # A copy is made in one go; the event loop may add a new key at any other moment.
    for values, count in counts.copy().items():
        family.add_metric(values, count)
    return family


def _histogram(name: str, told: str, histogram: Histogram) -> Metric:
    total_s, counts = histogram.sum, list(accumulate(histogram.counts.copy()))
    bounds = [*map(str, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, counts), strict=True))
    return HistogramMetricFamily(f"twostroke_{name}", told, buckets, total_s)
