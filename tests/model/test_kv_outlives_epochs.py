"""KV memory stays when a scheduler goes, so that its successor can go on from what is there."""

import random
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from executor_svc.model import load_model
from executor_svc.torch_runner import TorchRunner
from svc_wire.capacity import Capacity
from tests.support.planner import Job, Planner

pytestmark = pytest.mark.model

CAPACITY = Capacity(
    num_blocks=60, block_size=4, rows_max=4, tokens_max=24, lanes=4, model_len_max=60,
    vocab_size=261,
)  # fmt: skip


def test_new_epochs_change_no_token(tiny_folder: Path) -> None:
    rng = random.Random(4)
    jobs = [Job([rng.randrange(5, 261) for _ in range(n)], 20) for n in (3, 9, 17, 30)]
    model = load_model(tiny_folder, torch.float32, torch.device("cpu"))
    runner = TorchRunner(model, CAPACITY, "tiny")
    try:
        quiet = Planner(runner, jobs).run()
        planner = Planner(runner, jobs, epoch=2)
        assert planner.run(hand_over_every=3) == quiet
        assert planner.epochs > 5
    finally:
        runner.close()
