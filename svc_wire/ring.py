"""The shared file: a ring of plan frames and result frames, and the words that order them.

    page 0   file header: of which layout it is                       (written once by the owner)
    page 1   control words, 64 bytes apart:
               0  plan_word          last published step               (scheduler writes)
               1  result_word        last completed step               (executor writes)
               2  scheduler_waiting  1 while the scheduler blocks      (scheduler writes)
               3  executor_waiting   1 while the executor blocks       (executor writes)
    page 2.. FRAMES plan frames, then FRAMES result frames, page-aligned

A word holds epoch * 2**STEP_BITS + step, so that one 8-byte store publishes both. Step s lives in
frame s % FRAMES. A frame may be overwritten once step s - FRAMES has been committed, which the
depth bounds by construction (DEPTH_MAX + 1 steps in flight, FRAMES of them exist).

Handing over: payload first, fence, then the word; then, fence, and if the other side's waiting word
is set, the doorbell. Looking: the word first, fence, then the payload. Waiting: set one's waiting
word, fence, look at the word once more, then block on the socket for a bounded time.

The fence is an uncontended lock: CPython offers no other. Taking it is one atomic instruction with
acquire and release, a full barrier on x86 (which may move a load before an earlier store of another
address) and on Arm from 8.1 on. Where it were less, the price would be a doorbell that comes one
bounded wait late, or a TornFrame, never a wrong step.

The executor owns the file. It is on tmpfs, made with posix_fallocate (a full tmpfs is an error at
start, not a SIGBUS later). Its owner holds a flock on it; the kernel lets go of that when the owner
dies, however it dies, and whichever pid namespace the one who looks is in. So a ring whose lock can
be had is an orphan, and is swept at the next start. `multiprocessing.shared_memory` is not used:
its tracker unlinks segments of other processes.
"""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import secrets
import stat
import threading
from pathlib import Path

import numpy as np

from svc_wire.capacity import Capacity
from svc_wire.errors import RingError, RingTooLarge
from svc_wire.frames import PlanFrame, ResultFrame
from svc_wire.ids import DEPTH_MAX as DEPTH_MAX  # those who use the ring take it from here
from svc_wire.ids import EPOCH_BITS, STEP_BITS
from svc_wire.layout import LAYOUT_VERSION, layout_text, plan_dtype, result_dtype

FRAMES = 4
assert FRAMES > DEPTH_MAX + 1

PAGE_BYTES = 4096
RING_MAGIC = b"TWOSTRK\n"

FILE_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("layout_version", "<u4"),
        ("frames", "<u4"),
        ("file_bytes", "<u8"),
        ("layout_digest", "<u8"),  # of layout.layout_text, which holds every size
    ]
)

_TOO_LARGE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)

_fence_lock = threading.Lock()


def _fence() -> None:
    with _fence_lock:
        pass


def word(epoch: int, step: int) -> int:
    """The value of a sequence word for (epoch, step)."""
    assert 0 <= step < 1 << STEP_BITS
    assert 0 <= epoch < 1 << EPOCH_BITS
    return epoch << STEP_BITS | step


def unword(value: int) -> tuple[int, int]:
    """(epoch, step) of a sequence word."""
    return value >> STEP_BITS, value & ((1 << STEP_BITS) - 1)


def _page_round(count: int) -> int:
    return -(-count // PAGE_BYTES) * PAGE_BYTES


def ring_bytes(capacity: Capacity) -> int:
    """Size of the shared file for a capacity."""
    plan, result = plan_dtype(capacity).itemsize, result_dtype(capacity).itemsize
    return 2 * PAGE_BYTES + FRAMES * (_page_round(plan) + _page_round(result))


def _file_header(capacity: Capacity) -> bytes:
    digest = hashlib.sha256(layout_text(capacity).encode()).digest()[:8]
    header = np.zeros((), FILE_HEADER)
    header[...] = (
        RING_MAGIC, LAYOUT_VERSION, FRAMES, ring_bytes(capacity), int.from_bytes(digest, "little")
    )  # fmt: skip
    return header.tobytes()


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
        value = self._plan_word.value
        _fence()
        return unword(value)

    def last_result(self) -> tuple[int, int]:
        """(epoch, step) of the last published result."""
        value = self._result_word.value
        _fence()
        return unword(value)


class SchedulerRing(_Mapping):
    """The scheduler's end: writes plans, reads results."""

    @classmethod
    def attach(cls, path: Path, capacity: Capacity) -> "SchedulerRing":
        """Maps an executor's ring.

        Raises RingError if it is missing, foreign or of another layout.
        """
        try:
            fd = _open_ring(path, os.O_RDWR)
        except OSError as error:
            raise RingError(f"cannot open the frame ring {path}: {error.strerror}") from error
        try:
            expected, size = _file_header(capacity), os.fstat(fd).st_size
            if os.pread(fd, len(expected), 0) != expected:
                raise RingError(
                    f"{path} is not a frame ring of layout version {LAYOUT_VERSION} for {capacity}"
                )
            if size != ring_bytes(capacity):
                raise RingError(f"{path} has {size} bytes, expected {ring_bytes(capacity)}")
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
        """Says whether this side is about to block; look at `last_result` once more after that."""
        self._scheduler_waiting.value = int(waiting)
        _fence()


class ExecutorRing(_Mapping):
    """The executor's end and the owner of the file: reads plans, writes results."""

    @classmethod
    def create(cls, directory: Path, capacity: Capacity) -> "ExecutorRing":
        """Makes and maps a new ring in `directory`. Raises RingError, RingTooLarge.

        The caller holds the executor's role lock of that directory, so that nobody sweeps a ring
        that is not locked yet.
        """
        path = directory / f"ring-{os.getpid()}-{secrets.token_hex(4)}"
        size = ring_bytes(capacity)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RingError(f"cannot create the frame ring {path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(fd, 0, size)
            os.pwrite(fd, _file_header(capacity), 0)
            # The mapping keeps a duplicate of fd, and with it the lock, for as long as it lives.
            return cls(path, fd, capacity, writes_plans=False)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno in _TOO_LARGE:
                raise RingTooLarge(
                    f"the frame ring needs {size} bytes in {directory}, which has too little room "
                    f"({error.strerror}): enlarge that tmpfs, name another with --run-dir, "
                    f"or lower --rows-max or --model-len-max"
                ) from error
            raise RingError(f"cannot make the frame ring {path}: {error.strerror}") from error
        finally:
            os.close(fd)

    def publish_result(self, epoch: int, step: int) -> bool:
        """Hands the result of `step` over. True: the scheduler sleeps, ring the doorbell."""
        _fence()
        self._result_word.value = word(epoch, step)
        _fence()
        return self._scheduler_waiting.value != 0

    def set_waiting(self, waiting: bool) -> None:
        """Says whether this side is about to block; look at `last_plan` once more after that."""
        self._executor_waiting.value = int(waiting)
        _fence()

    def unlink(self) -> None:
        """Removes the file's name; the mapping lives until its last view is gone."""
        self.path.unlink(missing_ok=True)


def _open_ring(path: Path, flags: int) -> int:
    """The file descriptor of a regular file; never follows a link nor waits. Raises OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def sweep_rings(directory: Path) -> list[Path]:
    """Removes the rings in `directory` whose owner is dead; returns what it removed.

    Safe beside live instances, whose rings are locked. The caller holds the executor's role lock.
    """
    swept = []
    for path in sorted(directory.glob("ring-*")):
        try:
            fd = _open_ring(path, os.O_RDONLY)
        except OSError:
            continue  # gone meanwhile, or not a ring
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            swept.append(path)
        except BlockingIOError:
            continue  # its owner lives
        finally:
            os.close(fd)
    return swept
