"""Trying policies out: commands that go on as one of the scheduler's."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

TWOSTROKE = str(Path(sys.executable).with_name("twostroke"))
POLICY = "from scheduler_svc.core.policies.fcfs import Fcfs as Mine\n"


@pytest.mark.parametrize("words", [("policy", "check"), ("simulate",)])
def test_a_directory_that_is_gone_stands_in_nobodys_way(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    script = 'rmdir "$PWD"; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", TWOSTROKE, *words, "--help"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"Usage" in done.stdout
    assert done.stderr == b""


def test_a_policy_of_ones_own_lies_where_one_is(tmp_path: Path) -> None:
    (tmp_path / "own_policy.py").write_text(POLICY)
    simulated = ("simulate", "--policy", "own_policy:Mine", "--poisson", "one:4", "--duration", "1")
    done = subprocess.run([TWOSTROKE, *simulated], cwd=tmp_path, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr.count(b"Traceback")) == (0, 0), done.stderr
