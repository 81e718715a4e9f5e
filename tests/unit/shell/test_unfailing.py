"""Standard error that cannot be written does no harm, and says afterwards how much was lost."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc_shell.unfailing import Unfailing

LOGS = "import sys; from svc_shell.logs import setup_logs; log = setup_logs('test'); "


def notice(lines: int) -> str:
    return f"lost {lines}"


@pytest.fixture
def full() -> Iterator[int]:
    """A descriptor on which all writes fail: no space left."""
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        os.write(fd, b"x")
    yield fd
    os.close(fd)


def mend(fd: int, path: Path) -> None:
    """From here on, what is written goes to the file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, fd)
    os.close(file)


def test_lost_lines_are_counted_and_told_with_the_next_that_can_be_written(
    full: int, tmp_path: Path
) -> None:
    stream = Unfailing(full, notice)
    print("one", file=stream, flush=True)
    stream.write("two\nthree\n")
    mend(full, tmp_path / "log")
    print("four", file=stream, flush=True)
    print("five", file=stream)
    assert (tmp_path / "log").read_text() == "lost 3\nfour\nfive\n"
    stream.write("no end of a line: ")
    assert (tmp_path / "log").read_text().endswith("five\n")
    stream.flush()
    assert (tmp_path / "log").read_text().endswith("five\nno end of a line: ")


def test_a_reader_that_leaves_is_not_missed() -> None:
    reader, writer = os.pipe()
    stream = Unfailing(writer, notice)
    os.close(reader)
    print("one", file=stream, flush=True)
    os.close(writer)
    print("two", file=stream, flush=True)


def test_a_line_that_was_cut_is_lost_and_the_next_begins_anew() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stream = Unfailing(writer, notice)
    size = 1 << 20
    stream.write("x" * size + "\n")
    held = os.read(reader, size)
    assert 0 < len(held) < size, "only part of it found room"
    stream.write("short\n")
    assert os.read(reader, size) == b"\nlost 1\nshort\n"
    os.close(reader)
    os.close(writer)


def test_what_is_no_utf_8_is_written_all_the_same(full: int, tmp_path: Path) -> None:
    mend(full, tmp_path / "log")
    print("ä\ud800", file=Unfailing(full, notice))
    assert (tmp_path / "log").read_text() == "ä\\ud800\n"


def run(code: str, stderr: int) -> int:
    command = [sys.executable, "-c", LOGS + code]
    return subprocess.run(command, stderr=stderr, timeout=60, check=False).returncode


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("log.error('x'); log.info('y')", 0),
        ("import logging; logging.getLogger('x').error('y')", 0),
        ("import warnings; warnings.warn('x')", 0),
        ("sys.stderr.write('x' * 99999); sys.stderr.flush()", 0),
        ("import threading as t; x = t.Thread(target=lambda: 1 / 0); x.start(); x.join()", 0),
        ("log.error('x'); sys.exit(3)", 3),
        ("1 / 0", 1),
    ],
)
def test_whatever_writes_there_ends_as_ever(code: str, status: int, full: int) -> None:
    assert run(code, full) == status


@pytest.mark.process
def test_a_service_says_what_its_log_has_lost(full: int, tmp_path: Path) -> None:
    mended = f"import os; os.dup2(os.open({str(tmp_path / 'log')!r}, os.O_WRONLY), 2); "
    (tmp_path / "log").touch()
    assert run("log.info('one'); log.info('two'); " + mended + "log.info('three')", full) == 0
    first, second = (tmp_path / "log").read_text().splitlines()
    assert '"lines": 2' in first
    assert '"service": "test"' in first
    assert '"level": "warning"' in first
    assert '"event": "three"' in second


@pytest.mark.process
def test_one_that_is_closed_does_no_harm() -> None:
    command = [sys.executable, "-c", LOGS + "log.error('x')"]
    shell = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    assert subprocess.run(shell, timeout=60, check=False).returncode == 0
