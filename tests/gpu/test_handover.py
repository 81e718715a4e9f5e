"""KV memory stays when a scheduler goes; on the device, with graphs."""

from pathlib import Path

import pytest
import torch

from tests.support.planner import Planner

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

from tests.gpu.test_cuda_runner import make_runner, mixed_jobs  # noqa: E402 - skipped without triton


@pytest.mark.parametrize("depth", [0, 1])
def test_new_epochs_change_no_token(tiny_folder: Path, depth: int) -> None:
    jobs = mixed_jobs(24, seed=8)
    runner = make_runner(tiny_folder)
    try:
        quiet = Planner(runner, jobs, depth=depth).run()
        planner = Planner(runner, jobs, depth=depth, epoch=2)
        assert planner.run(hand_over_every=5) == quiet
        assert planner.epochs > 5
    finally:
        runner.close()
