"""The runtime directory of a test's processes, which must not outlive the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import users_of


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    yield path
    assert not users_of(path), "a test left processes behind"
