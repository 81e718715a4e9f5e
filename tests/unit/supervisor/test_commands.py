"""The command lines that the supervisor builds."""

import sys
from pathlib import Path

from supervisor_svc.cli import commands


def test_options_go_to_their_owner_and_absent_ones_to_nobody() -> None:
    built = commands(Path("/run"), {"model": "hash", "port": 0, "policy": None, "depth": 2})
    start = [sys.executable, "-P", "-m"]
    assert built == {
        "executor": [*start, "executor_svc", "--run-dir", "/run", "--model", "hash"],
        "scheduler": [*start, "scheduler_svc", "--run-dir", "/run", "--depth", "2"],
        "frontend": [*start, "frontend_svc", "--run-dir", "/run", "--port", "0"],
    }
