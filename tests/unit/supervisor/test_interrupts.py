"""Interrupts that come while something must not be cut in two."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from supervisor_svc.interrupts import held_back

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def interrupting() -> Iterator[None]:
    """Both interrupt, as in the supervisor."""
    before = [signal.signal(signum, signal.default_int_handler) for signum in SIGNALS]
    yield
    for signum, handler in zip(SIGNALS, before, strict=True):
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", SIGNALS)
def test_one_that_comes_meanwhile_comes_at_the_end(signum: signal.Signals) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - where in it is the question
        with held_back():
            signal.raise_signal(signum)
            done.append("all of it")
        done.append("what follows")
    assert done == ["all of it"]


def test_a_second_one_does_not_cut_off_what_cleans_up_after_the_first_one() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), ExitStack() as rest:  # noqa: PT012 - as above
        rest.callback(done.append, "cleaned up")
        with held_back():
            for signum in SIGNALS:
                signal.raise_signal(signum)
    done.append("not once more")
    assert done == ["cleaned up", "not once more"]


def test_afterwards_all_is_as_before() -> None:
    with held_back():
        pass
    assert {signal.getsignal(signum) for signum in SIGNALS} == {signal.default_int_handler}
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_one_inside_another_waits_for_the_outer_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():  # noqa: PT012 - it raises at its end
        with held_back():
            signal.raise_signal(signal.SIGINT)
        done.append("the rest of the outer one")
    assert done == ["the rest of the outer one"]
    assert {signal.getsignal(signum) for signum in SIGNALS} == {signal.default_int_handler}


def test_what_fails_meanwhile_is_told_and_all_is_as_before() -> None:
    with pytest.raises(OSError, match="no memory"), held_back():
        raise OSError("no memory")
    assert {signal.getsignal(signum) for signum in SIGNALS} == {signal.default_int_handler}


def test_one_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_back():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_are_interrupted_by_nobody() -> None:
    def held() -> str:
        with held_back():
            return "done"

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(held).result(timeout=10) == "done"


def test_one_that_comes_while_the_handlers_are_put_back_leaves_none_that_swallows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = signal.signal

    def interrupted(signum: int, handler: Callable[..., object]) -> None:
        if signum == signal.SIGTERM:
            signal.raise_signal(signal.SIGINT)
        put(signum, handler)

    with pytest.raises(KeyboardInterrupt), held_back():
        monkeypatch.setattr(signal, "signal", interrupted)
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
