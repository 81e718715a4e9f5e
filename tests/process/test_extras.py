"""Each part runs with what its extra installs, and without anything else that is installed here.

So a container for a service needs neither torch nor the other services' packages.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.extras import outside
from tests.support.fake_server import FakeServer
from tests.support.serve import TWOSTROKE
from tests.support.stack import Stack
from twostroke_client import Client

pytestmark = pytest.mark.process

BLOCKING = Path(__file__).parents[1] / "support" / "blocking"


def _block(monkeypatch: pytest.MonkeyPatch, extra: str) -> set[str]:
    """Processes that start from now on have what `extra` brings; returns what they lack."""
    lacking = outside(extra)
    path = [str(BLOCKING), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("BLOCKED_MODULES", " ".join(sorted(lacking)))
    return lacking


def test_the_blocking_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = _block(monkeypatch, "scheduler")
    assert {"torch", "transformers", "tokenizers", "grpc_health", "pytest"} <= lacking
    assert not {"zmq", "numpy", "msgspec", "typer", "grpc"} & lacking
    tried = subprocess.run(
        [sys.executable, "-c", "import torch"], capture_output=True, text=True, check=False
    )
    assert "No module named 'torch'" in tried.stderr


@pytest.mark.parametrize("extra", ["scheduler", "frontend"])
def test_a_service_runs_with_its_extra_alone(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = f"{extra}_svc"
    with Stack() as stack:
        stack.end(service)
        lacking = _block(monkeypatch, extra)
        assert {"torch", "transformers", "safetensors", "accelerate"} <= lacking
        stack.start(service)
        monkeypatch.undo()
        stack.wait_ready()
        with Client(stack.address) as client:
            answer = client.complete([1, 2], max_tokens=3, ignore_eos=True)
        assert answer.finish.output_tokens == 3


def test_the_command_line_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = _block(monkeypatch, "")
    assert {"zmq", "numpy", "msgspec", "torch", "grpc_health"} <= lacking
    with FakeServer() as server:
        done = subprocess.run(
            [TWOSTROKE, "generate", "hi", "--address", server.address],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert (done.returncode, done.stdout) == (0, "Hello!\n"), done.stderr
    refused = subprocess.run([TWOSTROKE, "serve"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "the server parts are not installed" in refused.stderr
