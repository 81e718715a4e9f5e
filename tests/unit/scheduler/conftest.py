"""A scheduler's requests, with front ends that are the test."""

from collections.abc import Iterator

import pytest

from tests.support.request_world import World
from tests.support.tmpfs import private_dir


@pytest.fixture
def world() -> Iterator[World]:
    with private_dir() as run_dir, World(str(run_dir)) as it:
        yield it
