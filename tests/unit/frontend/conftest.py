"""The runtime directory of a test's front ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tmpfs import private_dir


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with private_dir() as path:
        yield path
