"""An instance whose control socket's name is taken ends with a sentence."""

import socket
from pathlib import Path

import pytest

from tests.support.serve import Serve

pytestmark = pytest.mark.process


def test_it_says_so_and_leaves_nothing(run_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(f"\0{run_dir}/supervisor")
        with Serve("--run-dir", str(run_dir), "--log-level", "error", wait=False) as serve:
            assert serve.wait(30) == 1
            *_, last = serve.errors().splitlines()
            assert last == f"error: cannot take orders for {run_dir}: Address already in use"
            assert "Traceback" not in serve.errors()
