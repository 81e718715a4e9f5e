"""A child hears of its parent's end, told by real processes."""

import os
import subprocess
import sys

import pytest

from svc_wire.processes import die_with_parent

pytestmark = pytest.mark.process


CHILD = """
import os, signal, sys
from svc_wire.processes import die_with_parent
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"told\\n"), os._exit(0)))
die_with_parent(int(sys.argv[1]))
os.write(1, b"ready\\n")
signal.pause()
"""

PARENT = """
import subprocess, sys, os, signal
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
signal.pause()
"""


def test_a_child_is_told_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
        assert parent.stdout.readline() == b"told\n"


def test_a_child_whose_parent_is_gone_already_is_told_at_once() -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, "1"], stdout=subprocess.PIPE, check=True, timeout=30
    )
    assert child.stdout == b"told\n"


def test_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same within the measured process; the signal's number 0 asks for nothing."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, signum: sent.append((pid, signum)))
    die_with_parent(os.getppid(), 0)  # type: ignore[arg-type]
    assert sent == []
    die_with_parent(os.getppid() + 1, 0)  # type: ignore[arg-type]
    assert sent == [(os.getpid(), 0)]


def test_a_signal_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(OSError, match="PR_SET_PDEATHSIG"):
        die_with_parent(os.getppid(), 1000)  # type: ignore[arg-type]
