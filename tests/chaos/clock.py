"""A wall clock that jumps, for all processes that are started from here on.

A small library is preloaded into them that adds to the wall clock what a shared file says. The
monotonic clock stays as it is, as it would on a machine whose time is set.
"""

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class Clock:
    """What is added to the wall clock."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page

    def jump_to(self, offset_s: int) -> None:
        self._page[:8] = struct.pack("<q", offset_s)


@contextmanager
def jumping_clock(folder: Path) -> Iterator[Clock | None]:
    """Changes the environment until the block ends; None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        yield None
        return
    library, offset = folder / "clock.so", folder / "clock"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    offset.write_bytes(bytes(8))
    before = dict(os.environ)
    os.environ |= {"LD_PRELOAD": str(library), "CLOCK_JUMP": str(offset)}
    try:
        with offset.open("r+b") as file, mmap.mmap(file.fileno(), 0) as page:
            yield Clock(page)
    finally:
        os.environ.clear()
        os.environ.update(before)
