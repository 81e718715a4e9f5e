"""The shared file: a ring of plan frames and result frames, and the words that order them.

    page 0   file header: who made it, for which layout                (written once by the owner)
    page 1   control words, 64 bytes apart:
               0  plan_word          last published step               (scheduler writes)
               1  result_word        last completed step               (executor writes)
               2  scheduler_waiting  1 while the scheduler blocks      (scheduler writes)
               3  executor_waiting   1 while the executor blocks       (executor writes)
    page 2.. FRAMES plan frames, then FRAMES result frames, page-aligned

A word holds epoch * 2**STEP_BITS + step, so that one 8-byte store publishes both. Step s lives in
frame s % FRAMES. A frame may be overwritten once step s - FRAMES has been committed, which the depth
bounds by construction (DEPTH_MAX + 1 steps in flight, FRAMES of them exist).

Handing over: payload first, fence, then the word; then, if the other side's waiting word is set, the
doorbell. Waiting: set one's waiting word, fence, look at the word once more, then block on the socket
for a bounded time. The fence is a lock: CPython offers no other, and x86 may move a load before an
earlier store of another address.

The executor owns the file. It is on tmpfs, made with posix_fallocate (a full tmpfs is an error at
start, not a SIGBUS later), and it goes with its owner or is swept when its owner is found dead.
`multiprocessing.shared_memory` is not used: its tracker unlinks segments of other processes.
"""

import ctypes
import errno
import hashlib
import mmap
import os
import secrets
import threading
from pathlib import Path

import numpy as np

from svc_wire.capacity import Capacity
from svc_wire.errors import RingError, RingTooLarge
from svc_wire.frames import PlanFrame, ResultFrame
from svc_wire.layout import LAYOUT_VERSION, layout_text, plan_dtype, result_dtype
from svc_wire.processes import is_alive, start_ticks

DEPTH_MAX = 2
FRAMES = 4
assert FRAMES > DEPTH_MAX + 1

PAGE_BYTES = 4096
STEP_BITS = 40
RING_MAGIC = b"TWOSTRK\n"

FILE_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("layout_version", "<u4"),
        ("frames", "<u4"),
        ("file_bytes", "<u8"),
        ("layout_digest", "<u8"),
        ("owner_pid", "<u8"),
        ("owner_start_ticks", "<u8"),
    ]
)

_fence_lock = threading.Lock()


def _fence() -> None:
    with _fence_lock:
        pass


def word(epoch: int, step: int) -> int:
    """The value of a sequence word for (epoch, step)."""
    assert 0 <= step < 1 << STEP_BITS
    return epoch << STEP_BITS | step


def unword(value: int) -> tuple[int, int]:
    """(epoch, step) of a sequence word."""
    return value >> STEP_BITS, value & ((1 << STEP_BITS) - 1)


def _layout_digest(capacity: Capacity) -> int:
    return int.from_bytes(hashlib.sha256(layout_text(capacity).encode()).digest()[:8], "little")


def _page_round(count: int) -> int:
    return -(-count // PAGE_BYTES) * PAGE_BYTES


def ring_bytes(capacity: Capacity) -> int:
    """Size of the shared file for a capacity."""
    plan, result = plan_dtype(capacity).itemsize, result_dtype(capacity).itemsize
    return 2 * PAGE_BYTES + FRAMES * (_page_round(plan) + _page_round(result))


class _Mapping:
    """The mapped file with its words; both ends derive from it."""

    def __init__(self, path: Path, fd: int, capacity: Capacity, *, writes_plans: bool) -> None:
        self.path = path
        self.capacity = capacity
        self.mmap = mmap.mmap(fd, ring_bytes(capacity), mmap.MAP_SHARED)
        plan_stride = _page_round(plan_dtype(capacity).itemsize)
        result_stride = _page_round(result_dtype(capacity).itemsize)
        results_at = 2 * PAGE_BYTES + FRAMES * plan_stride
        self._plans = [
            PlanFrame(self.mmap, capacity, 2 * PAGE_BYTES + k * plan_stride, writable=writes_plans)
            for k in range(FRAMES)
        ]
        self._results = [
            ResultFrame(
                self.mmap, capacity, results_at + k * result_stride, writable=not writes_plans
            )
            for k in range(FRAMES)
        ]
        words = [ctypes.c_uint64.from_buffer(self.mmap, PAGE_BYTES + 64 * k) for k in range(4)]
        self._plan_word, self._result_word, self._scheduler_waiting, self._executor_waiting = words

    def plan_frame(self, step: int) -> PlanFrame:
        return self._plans[step % FRAMES]

    def result_frame(self, step: int) -> ResultFrame:
        return self._results[step % FRAMES]

    def last_plan(self) -> tuple[int, int]:
        """(epoch, step) of the last published plan."""
        return unword(self._plan_word.value)

    def last_result(self) -> tuple[int, int]:
        """(epoch, step) of the last published result."""
        return unword(self._result_word.value)


class SchedulerRing(_Mapping):
    """The scheduler's end: writes plans, reads results."""

    @classmethod
    def attach(cls, path: Path, capacity: Capacity) -> "SchedulerRing":
        """Maps an executor's ring. Raises RingError if it is missing, foreign or of another layout."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise RingError(f"cannot open the frame ring {path}: {error.strerror}") from error
        try:
            header = _read_header(fd)
            if header is None or header["layout_digest"] != _layout_digest(capacity):
                raise RingError(f"{path} is not a frame ring of layout version {LAYOUT_VERSION}")
            if os.fstat(fd).st_size != ring_bytes(capacity):
                raise RingError(
                    f"{path} has {os.fstat(fd).st_size} bytes, expected {ring_bytes(capacity)}"
                )
            return cls(path, fd, capacity, writes_plans=True)
        finally:
            os.close(fd)

    def publish_plan(self, epoch: int, step: int) -> bool:
        """Hands the sealed frame of `step` over. True: the executor sleeps, ring the doorbell."""
        _fence()
        self._plan_word.value = word(epoch, step)
        _fence()
        return self._executor_waiting.value != 0

    def set_waiting(self, waiting: bool) -> None:
        """Says whether this side is about to block on its socket; look at `last_result` again after."""
        self._scheduler_waiting.value = int(waiting)
        _fence()


class ExecutorRing(_Mapping):
    """The executor's end and the owner of the file: reads plans, writes results."""

    @classmethod
    def create(cls, directory: Path, capacity: Capacity) -> "ExecutorRing":
        """Makes and maps a new ring in `directory`. Raises RingError, RingTooLarge."""
        path = directory / f"ring-{os.getpid()}-{secrets.token_hex(4)}"
        size = ring_bytes(capacity)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RingError(f"cannot create the frame ring {path}: {error.strerror}") from error
        try:
            os.posix_fallocate(fd, 0, size)
            header = np.zeros((), FILE_HEADER)
            header[...] = (
                RING_MAGIC, LAYOUT_VERSION, FRAMES, size, _layout_digest(capacity),
                os.getpid(), start_ticks(os.getpid()) or 0,
            )  # fmt: skip
            os.pwrite(fd, header.tobytes(), 0)
            return cls(path, fd, capacity, writes_plans=False)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno == errno.ENOSPC:
                raise RingTooLarge(
                    f"the frame ring needs {size} bytes in {directory}, which has too little room: enlarge "
                    f"that tmpfs, name another with --run-dir, or lower --rows-max or --model-len-max"
                ) from error
            raise RingError(f"cannot make the frame ring {path}: {error.strerror}") from error
        finally:
            os.close(fd)

    def publish_result(self, epoch: int, step: int) -> bool:
        """Hands the written result of `step` over. True: the scheduler sleeps, ring the doorbell."""
        _fence()
        self._result_word.value = word(epoch, step)
        _fence()
        return self._scheduler_waiting.value != 0

    def set_waiting(self, waiting: bool) -> None:
        """Says whether this side is about to block on its socket; look at `last_plan` again after."""
        self._executor_waiting.value = int(waiting)
        _fence()

    def unlink(self) -> None:
        """Removes the file's name; the mapping lives until its last view is gone."""
        self.path.unlink(missing_ok=True)


def _read_header(fd: int) -> np.void | None:
    raw = os.pread(fd, FILE_HEADER.itemsize, 0)
    if len(raw) < FILE_HEADER.itemsize:
        return None
    header: np.void = np.frombuffer(raw, FILE_HEADER)[0]
    # numpy strips trailing NULs of bytes fields, not newlines.
    return header if bytes(header["magic"]) == RING_MAGIC else None


def sweep_rings(directory: Path) -> list[Path]:
    """Removes the rings in `directory` whose owner is dead; returns what it removed.

    Safe beside live instances: a ring belongs to (pid, start time), so a reused pid is no mistake.
    A ring without a valid header (its maker died before writing it) is judged by the pid in its name.
    """
    swept = []
    for path in sorted(directory.glob("ring-*")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            header = _read_header(fd)
        finally:
            os.close(fd)
        if header is None:
            pid_text = path.name.split("-")[1]
            alive = pid_text.isdigit() and start_ticks(int(pid_text)) is not None
        else:
            alive = is_alive(int(header["owner_pid"]), int(header["owner_start_ticks"]))
        if not alive:
            path.unlink(missing_ok=True)
            swept.append(path)
    return swept
