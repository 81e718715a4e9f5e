"""CUDA graphs of decode steps: one for each (slot, bucket of rows, recipe), in one memory pool.

Graphs never run at the same time, so they may share the memory of their intermediate results: what
the second slot and the smaller buckets need is there already. A step whose graph does not exist yet
is launched one by one, which also warms up its kernels; one whose kind has come a few times is
captured, which holds the device up for some milliseconds. Where there is no memory for a graph its
steps are launched one by one for good: slower, and nobody's request is to blame.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable

import structlog
import torch
from rich.console import Console
from rich.progress import track

from executor_svc.cuda.attention import StepShape
from executor_svc.recipe import PLAIN, Recipe

log = structlog.get_logger()

_COMES_BEFORE = 3
"""Steps of a kind that are launched one by one before it is worth a graph."""

Key = tuple[StepShape, Recipe]
Enqueue = Callable[[StepShape, Recipe], None]


def row_buckets(rows_max: int) -> list[int]:
    """Rows that decode steps are padded to: dense where a row more costs something."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(320, rows_max + 64, 64)]
    return [size for size in sizes if size < rows_max] + [rows_max]


def progress(shapes: list[StepShape], what: str) -> Iterable[StepShape]:
    """Yields the shapes, with a progress bar where somebody watches."""
    console = Console(stderr=True)
    return track(shapes, what, console=console, transient=True, disable=not console.is_terminal)


class DecodeGraphs:
    """Captures and replays decode steps on `stream`."""

    def __init__(self, enqueue: Enqueue, stream: torch.cuda.Stream) -> None:
        self._enqueue = enqueue
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self._seen: Counter[Key] = Counter()
        self._hopeless: set[Key] = set()

    def run(self, shape: StepShape, recipe: Recipe) -> None:
        """Enqueues one step, by its graph if there is one. The current stream must be ours."""
        key = shape, recipe
        if key not in self._graphs and self._is_due(key):
            self._try_capture(key)
        if key in self._graphs:
            self._graphs[key].replay()
        else:
            self._enqueue(shape, recipe)

    def _is_due(self, key: Key) -> bool:
        self._seen[key] += 1
        return self._seen[key] > _COMES_BEFORE and key not in self._hopeless

    def capture_all(self, shapes: Iterable[StepShape]) -> None:
        """Captures the plain steps of these shapes; the slots must be empty (no rows)."""
        for shape in shapes:
            self._enqueue(shape, PLAIN)
            self._stream.synchronize()
            self._capture((shape, PLAIN))
        self._stream.synchronize()

    def _try_capture(self, key: Key) -> None:
        try:
            self._capture(key)
        except RuntimeError as error:  # torch raises what CUDA says as this, lack of memory, too
            self._hopeless.add(key)
            why = str(error).splitlines()[0]
            log.warning("no graph", shape=str(key[0]), recipe=str(key[1]), error=why)

    def _capture(self, key: Key) -> None:
        begin = time.monotonic()
        graph = torch.cuda.CUDAGraph()
        # Other threads may use CUDA meanwhile; only this thread's calls belong to the graph.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            self._enqueue(*key)
        self._graphs[key] = graph
        log.debug(
            "captured", shape=str(key[0]), recipe=str(key[1]), seconds=time.monotonic() - begin
        )

    @property
    def count(self) -> int:
        return len(self._graphs)
