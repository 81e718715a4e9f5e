"""The Node.js client against real services: what another language needs is in the proto alone."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.stack import Stack
from twostroke_client import Client

pytestmark = pytest.mark.process

NODE_CLIENT = Path(__file__).parents[2] / "client" / "node"


@pytest.fixture(scope="module")
def npm() -> str:
    found = shutil.which("npm")
    if found is None:
        assert not os.environ.get("CI"), "CI must have Node.js, or this client goes untested"
        pytest.skip("Node.js (npm) is not installed")
    return found


def _run(command: list[str], **env: str) -> str:
    done = subprocess.run(
        command,
        cwd=NODE_CLIENT,
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _becomes_idle(address: str, timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    with Client(address) as client:
        while (found := client.server_status()).running or found.waiting:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


def test_streams_and_cancels(npm: str) -> None:
    lock, installed = NODE_CLIENT / "package-lock.json", NODE_CLIENT / "node_modules"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        installed.touch()
    # Slow steps, so that an answer is still running when it is cancelled.
    with Stack(executor=["--model", "hash", "--step-ms", "2"]) as stack:
        output = _run([npm, "test"], TWOSTROKE_ADDRESS=stack.address)
        assert "# pass 4" in output
        assert _becomes_idle(stack.address), "a cancelled request still runs"
