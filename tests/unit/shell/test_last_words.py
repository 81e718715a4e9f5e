"""What a process said last is known to the one that started it."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from svc_shell.last_words import BYTES_MAX, LAST_WORDS_FD, LastWords

pytestmark = pytest.mark.process

SERVICE = (
    "import os, sys; from svc_shell.logs import setup_logs; log = setup_logs('service'); "
    f"assert '{LAST_WORDS_FD}' not in os.environ, 'not for the next process'; "
)


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
        ("log.error('x' * 9999)", "x" * BYTES_MAX),
    ],
)
def test_the_last_error_is_kept(words: LastWords, code: str, last: str) -> None:
    run(words, code)
    assert words.read() == last


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
