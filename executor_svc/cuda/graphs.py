"""CUDA graphs of what is enqueued again and again, by key, in one memory pool.

What the keys stand for is said in step.py and segments.py. Graphs never run at the same time, so
they may share the memory of their intermediate results: what the second slot and the smaller
buckets need is there already. So what one graph leaves for another must lie outside of the pool.
There are at most (slots x row buckets x (1 + recipes) + token buckets x layers + row buckets).

Work whose graph does not exist yet is launched kernel by kernel, which also warms the kernels up;
what has come a few times is captured, which holds the host up for a millisecond or some. Where
there is no memory for a graph its work is launched kernel by kernel for good: slower, and nobody's
request is to blame.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeVar

import structlog
import torch
from rich.console import Console
from rich.progress import track

log = structlog.get_logger()

_COMES_BEFORE = 3
"""Times that something is launched kernel by kernel before it is worth a graph."""

Key = tuple[Hashable, ...]
Enqueue = Callable[[], None]
Work = tuple[Key, Enqueue]
"""A key, and what is enqueued for it."""
T = TypeVar("T")


def row_buckets(rows_max: int) -> list[int]:
    """Rows that decode steps are padded to: dense where a row more costs something."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(320, rows_max + 64, 64)]
    return [size for size in sizes if size < rows_max] + [rows_max]


def progress(things: list[T], what: str) -> Iterable[T]:
    """Yields the things, with a progress bar where somebody watches."""
    console = Console(stderr=True)
    return track(things, what, console=console, transient=True, disable=not console.is_terminal)


class Launcher(Protocol):
    """Enqueues the work of keys."""

    def run(self, key: Key, enqueue: Enqueue) -> None: ...

    def prepare(self, key: Key, enqueue: Enqueue) -> None:
        """Does now what would hold up a later `run`; the work must be harmless to do twice."""


class Direct:
    """A launcher without graphs: kernel by kernel."""

    def run(self, key: Key, enqueue: Enqueue) -> None:
        enqueue()

    prepare = run


class Graphs:
    """A launcher that captures and replays on `stream`, which must be the current one."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self._seen: Counter[Key] = Counter()
        self._hopeless: set[Key] = set()

    @property
    def keys(self) -> set[Key]:
        """Whose graphs there are."""
        return set(self._graphs)

    def run(self, key: Key, enqueue: Enqueue) -> None:
        graph = self._graphs.get(key) or self._capture_if_due(key, enqueue)
        if graph:
            graph.replay()
        else:
            enqueue()

    def prepare(self, key: Key, enqueue: Enqueue) -> None:
        """Raises RuntimeError if there is no memory for the graph."""
        enqueue()
        self._stream.synchronize()
        self._capture(key, enqueue)

    def _capture_if_due(self, key: Key, enqueue: Enqueue) -> torch.cuda.CUDAGraph | None:
        self._seen[key] += 1
        if self._seen[key] <= _COMES_BEFORE or key in self._hopeless:
            return None
        try:
            return self._capture(key, enqueue)
        except RuntimeError as error:  # torch raises what CUDA says as this, lack of memory, too
            self._hopeless.add(key)
            self._pool = torch.cuda.graph_pool_handle()  # the other may be left half open
            why = str(error.__context__ or error).splitlines()[0]
            log.warning("no graph", key=str(key), error=why)
            return None

    def _capture(self, key: Key, enqueue: Enqueue) -> torch.cuda.CUDAGraph:
        begin = time.monotonic()
        try:
            graph = self._captured(enqueue)
        except torch.OutOfMemoryError:
            # In a capture the allocator lets nothing go of what it keeps for others.
            torch.cuda.empty_cache()
            graph = self._captured(enqueue)
        self._graphs[key] = graph
        log.debug("captured", key=str(key), seconds=time.monotonic() - begin)
        return graph

    def _captured(self, enqueue: Enqueue) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which synchronises the device and empties the allocator's cache.
        # Other threads may use CUDA meanwhile; only this thread's calls belong to the graph.
        graph.capture_begin(self._pool, "thread_local")
        try:
            enqueue()
        finally:
            graph.capture_end()
        return graph
