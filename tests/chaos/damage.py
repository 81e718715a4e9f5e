"""Damage to the shared file of a running instance, where a checksum guards it."""

import mmap
import random
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from svc_wire.layout import HEADER, PLAN_MAGIC, RESULT_MAGIC
from svc_wire.ring import PAGE_BYTES

_CHECKSUM_AT, _MAGIC_AT = (HEADER.fields[name][1] for name in ("checksum", "magic"))  # type: ignore[index]
_WAITING_AT = tuple(PAGE_BYTES + 64 * word for word in (2, 3))
LOOK_S = 0.001


def tear_frames(
    run_dirs: Path, chance: random.Random, times: int = 200, magics: tuple[int, ...] = ()
) -> None:
    """Checksums of frames go wrong for a while; a reader that comes by gives the epoch up."""
    with _ring(run_dirs) as ring:
        frames = list(_frames(ring, magics or (PLAN_MAGIC, RESULT_MAGIC)))
        for _ in range(times if frames else 0):
            ring[chance.choice(frames) + _CHECKSUM_AT] ^= 0xFF
            time.sleep(LOOK_S)


def tear_results(run_dirs: Path) -> None:
    """The same with the executor's results alone."""
    tear_frames(run_dirs, random.Random(0), times=20, magics=(RESULT_MAGIC,))


def drop_doorbells(run_dirs: Path) -> None:
    """Those who sleep are taken for awake, so that nobody rings."""
    with _ring(run_dirs) as ring:
        for _ in range(1000):
            for at in _WAITING_AT:
                ring[at] = 0
            time.sleep(LOOK_S)


@contextmanager
def _ring(run_dirs: Path) -> Iterator[mmap.mmap]:
    """The frames of the executor that lives now; a page of nothing if there is none."""
    for path in run_dirs.rglob("ring-*"):
        with suppress(OSError, ValueError), path.open("r+b") as file:
            with mmap.mmap(file.fileno(), 0) as ring:
                yield ring
            return
    with mmap.mmap(-1, 2 * PAGE_BYTES) as nothing:
        yield nothing


def _frames(ring: mmap.mmap, magics: tuple[int, ...]) -> Iterator[int]:
    for at in range(0, len(ring), PAGE_BYTES):
        (magic,) = struct.unpack_from("<I", ring, at + _MAGIC_AT)
        if magic in magics:
            yield at
