"""Penalties and log-probabilities of the CPU runner against transformers."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from executor_svc.embedded import embedded_folder
from executor_svc.model import load_model
from executor_svc.torch_runner import TorchRunner
from svc_wire.capacity import Capacity
from svc_wire.frontend_link import Sampling
from tests.model.penalised import assert_as_decoded, draw_jobs
from tests.support.planner import Job, Planner

pytestmark = pytest.mark.model

CAPACITY = Capacity(
    num_blocks=60, block_size=4, rows_max=8, tokens_max=40, lanes=8, model_len_max=120,
    vocab_size=261,
)  # fmt: skip


@pytest.fixture(scope="module")
def runner(tiny_folder: Path) -> Iterator[TorchRunner]:
    made = TorchRunner(
        load_model(tiny_folder, torch.float32, torch.device("cpu")), CAPACITY, "tiny"
    )
    yield made
    made.close()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_penalties_and_logprobs_equal_those_of_transformers(
    runner: TorchRunner, tiny_folder: Path, depth: int
) -> None:
    """In chunks, in batches, with pre-emptions, in lanes that others had before."""
    jobs = draw_jobs(14, seed=depth, prompt_max=40, last_arrival=20)
    planner = Planner(runner, jobs, seed=depth, depth=depth, chunk_max=9, preempt_chance=0.05)
    planner.run()
    assert planner.preemptions
    assert_as_decoded(AutoModelForCausalLM.from_pretrained(tiny_folder).eval(), planner, 1e-4)


def test_penalties_do_not_depend_on_the_batch(runner: TorchRunner) -> None:
    """Of drawn tokens, too: alone at depth 0, and together with others at depth 2."""
    rng = random.Random(9)
    jobs = [
        Job(
            [rng.randrange(5, 261) for _ in range(rng.randint(1, 30))],
            16,
            Sampling(
                temperature=rng.choice([0.0, 0.8]),
                top_k=rng.choice([0, 9]),
                seed=rng.getrandbits(63),
                repetition_penalty=rng.choice([1.0, 1.4]),
                frequency_penalty=rng.choice([0.0, 1.0]),
            ),
            arrives_at_step=rng.randrange(10),
        )
        for _ in range(10)
    ]
    together = Planner(runner, jobs, depth=2, chunk_max=7, preempt_chance=0.1).run()
    assert together == [Planner(runner, [job], depth=0, chunk_max=40).run()[0] for job in jobs]


def test_smollm2_repeats_as_little_as_with_generate() -> None:
    folder = embedded_folder()
    capacity = Capacity(
        num_blocks=80, block_size=4, rows_max=4, tokens_max=64, lanes=4, model_len_max=160,
        vocab_size=49152,
    )  # fmt: skip
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 40000) for _ in range(rng.randint(3, 30))] for _ in range(3)]
    sampling = Sampling(repetition_penalty=1.3)
    jobs = [Job(prompt, 20, sampling, stop_ids=(2,)) for prompt in prompts]
    runner = TorchRunner(load_model(folder, torch.float32, torch.device("cpu")), capacity, "s")
    try:
        outputs = Planner(runner, jobs, depth=1, chunk_max=11, preempt_chance=0.03).run()
    finally:
        runner.close()
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = plain.generate(
            torch.tensor([prompt]), do_sample=False, repetition_penalty=1.3, max_new_tokens=20,
            eos_token_id=2, pad_token_id=2, attention_mask=torch.ones(1, len(prompt)).long(),
        )  # fmt: skip
        assert output == ids[0, len(prompt) :].tolist()
