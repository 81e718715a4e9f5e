"""Every test of streaming runs on both clients: they are shells around the same logic."""

from collections.abc import Callable

import pytest

from tests.support.client_drive import AsyncDrive, Drive, SyncDrive

_DRIVES: dict[str, Callable[[], Drive]] = {"sync": SyncDrive, "async": AsyncDrive}


@pytest.fixture(params=_DRIVES)
def drive(request: pytest.FixtureRequest) -> Drive:
    return _DRIVES[request.param]()
