"""The embedded model on the GPU: fp32 equals plain transformers, token for token."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from executor_svc.embedded import embedded_folder
from executor_svc.errors import ModelNotFound
from svc_wire.capacity import Capacity
from tests.model.greedy import greedy
from tests.support.planner import Job, Planner

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

SENTENCES = [
    "The old lighthouse keeper counted the ships that passed before dawn.",
    "Water boils at a lower temperature on a high mountain than by the sea.",
    "A compiler turns a program that people can read into one that machines can run.",
    "List the planets of the solar system in order and say one thing about each.",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return embedded_folder()
    except ModelNotFound as error:
        pytest.skip(str(error))


def jobs_of(folder: Path) -> list[Job]:
    """64 requests of 1 to 300 tokens of text, which arrive one after the other."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chance = random.Random(11)
    jobs: list[Job] = []
    for _ in range(64):
        ids = tokenizer(" ".join(chance.choices(SENTENCES, k=24))).input_ids
        prompt = ids[: chance.randint(1, min(300, len(ids)))]
        jobs.append(Job(prompt, chance.randint(1, 40), stop_ids=(2,), arrives_at_step=len(jobs)))
    return jobs


def test_64_mixed_requests_equal_plain_greedy_at_every_depth(folder: Path) -> None:
    from executor_svc.cuda.runner import CudaOptions, CudaRunner
    from executor_svc.model import load_model

    device = torch.device("cuda:0")
    jobs = jobs_of(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    expected = [greedy(plain, job.prompt, job.max_tokens, job.stop_ids) for job in jobs]
    capacity = Capacity(
        num_blocks=320, block_size=16, rows_max=32, tokens_max=512, lanes=40, model_len_max=512,
        vocab_size=plain.config.vocab_size,
    )  # fmt: skip
    runner = CudaRunner(load_model(folder, torch.float32, device), capacity, "x", CudaOptions())
    try:
        for depth in (0, 1, 2):
            planner = Planner(
                runner, jobs, seed=depth, depth=depth, chunk_max=100, preempt_chance=0.03
            )
            assert planner.run() == expected
            assert planner.preemptions
    finally:
        runner.close()
