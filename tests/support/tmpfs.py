"""Private directories on tmpfs, whose names say which process made them."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHM = Path("/dev/shm")


def private_prefix() -> str:
    """How the names in SHM of all that this process makes begin."""
    return f"ts-{os.getpid()}-"


@contextmanager
def private_dir() -> Iterator[Path]:
    """With a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix=private_prefix(), dir=SHM) as path:
        yield Path(path)
