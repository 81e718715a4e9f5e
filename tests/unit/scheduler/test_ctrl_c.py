"""Ctrl-C in a policy's code ends the process: it is not taken for what the policy raised."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "scheduler": ("scheduler_svc", "--check", "--policy"),
    "simulate": ("scheduler_svc.simulate", "--poisson", "5", "--duration", "1", "--policy"),
    "policy check": ("scheduler_svc.policy_check",),
}

INTERRUPT = "signal.raise_signal(signal.SIGINT)"

POLICY = """
import signal
from scheduler_svc.core.policies import Fcfs

class Heavy(Fcfs):
    def key(self, request):
        {in_key}
        return (request.arrival,)

{at_import}
"""


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("scheduler", "at_import"),
        ("simulate", "at_import"),
        ("simulate", "in_key"),
        ("policy check", "at_import"),
        ("policy check", "in_key"),
    ],
)
def test_an_interrupt_in_a_policy_ends_the_process(
    tmp_path: Path, command: str, where: str
) -> None:
    lines = {"in_key": "pass", "at_import": "pass", where: INTERRUPT}
    (tmp_path / "heavy_policies.py").write_text(POLICY.format(**lines))
    done = subprocess.run(
        [sys.executable, "-m", *COMMANDS[command], "heavy_policies:Heavy"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "KeyboardInterrupt" not in done.stderr
