"""`twostroke serve` whose standard error cannot be written serves, mends and ends as ever."""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.support.serve import Serve, wait_until
from twostroke_client import Client

pytestmark = pytest.mark.process


def full_disk(place: ExitStack) -> tuple[int, Callable[[], None]]:
    fd = os.open("/dev/full", os.O_WRONLY)
    place.callback(os.close, fd)
    return fd, lambda: None


def reader_that_leaves(place: ExitStack) -> tuple[int, Callable[[], None]]:
    reader, writer = os.pipe()
    place.callback(os.close, writer)
    return writer, lambda: os.close(reader)


@pytest.mark.parametrize(
    ("stderr", "role"), [(full_disk, "executor"), (reader_that_leaves, "scheduler")]
)
def test_streams_outlive_the_log(
    stderr: Callable[[ExitStack], tuple[int, Callable[[], None]]],
    role: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TWOSTROKE_STEP_MS", "10")
    with ExitStack() as place:
        fd, leave = stderr(place)
        serve = place.enter_context(Serve("--log-level", "debug", stderr=fd))
        leave()
        client = place.enter_context(Client(serve.address))
        stream = client.generate([1, 2, 3], max_tokens=150, ignore_eos=True)
        next(stream)
        before = serve.services
        serve.services[role].kill()
        *_, last = stream
        assert last.finish is not None
        assert last.finish.output_tokens == 150
        assert wait_until(lambda: serve.find_services().keys() == before.keys(), 20)
        others = before.keys() - {role}
        assert all(serve.find_services()[other].pid == before[other].pid for other in others)
        begun = client.generate([1], max_tokens=50, ignore_eos=True)
        next(begun)
        serve.signal(signal.SIGTERM)
        *_, last = begun
        assert last.finish is not None
        assert last.finish.output_tokens == 50
        assert serve.wait(15) == 0
        assert serve.leftovers() == []
