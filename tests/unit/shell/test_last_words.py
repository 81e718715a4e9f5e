"""What a process said last is known to the one that started it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from svc_shell.last_words import BYTES_MAX, FRESH_S, LAST_WORDS_FD, LastWords

pytestmark = pytest.mark.process

SERVICE = (
    "import os, sys; from svc_shell.logs import setup_logs; log = setup_logs('service'); "
    f"assert '{LAST_WORDS_FD}' not in os.environ, 'not for the next process'\n"
)
TRY = "try: raise ValueError('a bug')\nexcept ValueError as e:"
MUTE = "class Mute(Exception):\n def __str__(self): raise OSError('no text')\n\n"


@pytest.fixture
def words() -> Iterator[LastWords]:
    it = LastWords()
    yield it
    it.close()


def run(words: LastWords, code: str) -> str:
    """What it left; stderr."""
    done = subprocess.run(
        [sys.executable, "-c", SERVICE + code],
        env=os.environ | {LAST_WORDS_FD: str(words.fd)},
        pass_fds=[words.fd],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("log.error('cannot serve', error='no port')", "no port"),
        ("log.error('a long one', error='x' * 99); log.error('cannot serve')", "cannot serve"),
        ("log.error('cannot serve', error='two\\n  lines'); log.info('stopped')", "two lines"),
        ("log.warning('slow'); log.info('stopped')", ""),
        ("log.error('at first'); raise ValueError('a bug')", "ValueError: a bug"),
        ("log.error('\\ud800')", "?"),
        ("log.error('\\033[31mred\\0\\x9b7m')", "[31mred7m"),
        (f"{TRY} log.exception('cannot serve')", "cannot serve: ValueError: a bug"),
        (f"{TRY} log.error('cannot serve', exc_info=e)", "cannot serve: ValueError: a bug"),
        (f"{TRY} log.error('cannot serve')", "cannot serve"),
        (f"{MUTE}raise Mute", "Mute: <exception str() failed>"),
    ],
)
def test_the_last_error_is_kept(words: LastWords, code: str, last: str) -> None:
    run(words, code)
    assert words.read() == last


def test_what_is_kept_is_bounded(words: LastWords) -> None:
    run(words, "log.error('x' * 9999)")
    assert BYTES_MAX - 50 < len(words.read()) < BYTES_MAX


def test_an_error_of_long_ago_is_not_why_it_ended(
    words: LastWords, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(words, "log.error('slow')")
    assert words.read() == "slow"
    later_s = time.monotonic() + FRESH_S
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert words.read() == ""


@pytest.mark.parametrize("told", ["9999", "0", "-1", "", "one", "9" * 30, "9" * 5000])
def test_a_service_goes_on_where_nothing_can_be_kept(told: str) -> None:
    code = SERVICE + "log.error('cannot serve'); print('goes on')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {LAST_WORDS_FD: told},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"goes on\n"


def test_what_it_dies_of_is_shown_as_ever(words: LastWords) -> None:
    errors = run(words, "raise ValueError('a bug')")
    assert errors.endswith("ValueError: a bug\n")
    assert "Traceback" in errors


def test_nobody_need_want_to_know() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVICE + "log.error('cannot serve')"],
        stderr=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    assert b"cannot serve" in done.stderr
