"""Commands, as processes, when nobody takes what they write."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_server import FakeServer
from twostroke_client.reporting import EXIT_FAILED, EXIT_NO_READER

pytestmark = pytest.mark.process

TWOSTROKE = str(Path(sys.executable).with_name("twostroke"))
COMMANDS = {
    "generate": ("generate", "hi"),
    "json": ("generate", "hi", "--json"),
    "chat": ("chat",),
    "status": ("status",),
    "version": ("version",),
    "help": ("serve", "--help"),
    "simulate": ("simulate", "--policy", "fcfs", "--poisson", "one:4", "--duration", "1"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


def run(server: FakeServer, words: tuple[str, ...], stdout: int) -> tuple[int, list[str]]:
    """Exit status, and lines on stderr."""
    done = subprocess.run(
        [TWOSTROKE, *words],
        input="hi\n",
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=os.environ | {"TWOSTROKE_ADDRESS": server.address},
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_full_disk_is_one_sentence(server: FakeServer, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        code, errors = run(server, words, full.fileno())
    assert code == EXIT_FAILED
    assert errors[-1] == "error: cannot write the output: No space left on device"
    assert not any("Traceback" in line or "Exception" in line for line in errors)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_reader_who_has_left_is_not_complained_of(
    server: FakeServer, words: tuple[str, ...]
) -> None:
    read, write = os.pipe()
    os.close(read)
    code, errors = run(server, words, write)
    os.close(write)
    assert code == EXIT_NO_READER
    assert not any("rror" in line or "Traceback" in line for line in errors)


def test_an_output_that_was_never_there_is_said_so() -> None:
    done = subprocess.run(
        ["bash", "-c", f"exec {TWOSTROKE} version >&-"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        EXIT_FAILED,
        "error: cannot write the output: Bad file descriptor\n",
    )


def test_an_output_without_a_buffer_stays_without_one() -> None:
    code = (
        "from twostroke_client.output import *; guard_stdout(); print('at once', end=''); "
        "os._exit(0)"  # flushes nothing
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"at once"
