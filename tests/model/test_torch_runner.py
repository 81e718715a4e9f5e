"""Paged and batched equals plain greedy: the tiny model in all ways, SmolLM2 in a short run."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from executor_svc.config import ExecutorConfig
from executor_svc.embedded import embedded_folder
from executor_svc.model import load_model
from executor_svc.runner import Runner, RunnerError
from executor_svc.torch_assembly import make_torch_runner
from executor_svc.torch_runner import TorchRunner
from svc_wire.capacity import Capacity
from tests.model.greedy import greedy
from tests.model.jobs import stopping_jobs
from tests.model.promises import (
    min_tokens_keeps_stop_ids_away,
    seeded_sampling_does_not_depend_on_the_batch,
)
from tests.support.planner import Job, Planner
from tests.tiny_model import EOS

pytestmark = pytest.mark.model


def _runner(
    folder: Path, *, num_blocks: int, tokens_max: int = 40, model_len_max: int | None = None
) -> Runner:
    config = ExecutorConfig(
        model=str(folder),
        dtype="float32",
        threads=1,
        rows_max=8,
        block_size=4,
        num_blocks=num_blocks,
        tokens_max=tokens_max,
        model_len_max=model_len_max,
    )
    return make_torch_runner(config, folder)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("num_blocks", [400, 40])
def test_tiny_model_equals_plain_greedy(tiny_folder: Path, depth: int, num_blocks: int) -> None:
    jobs = stopping_jobs(16, num_blocks + depth, stop_ids=(EOS,))
    runner = _runner(tiny_folder, num_blocks=num_blocks, model_len_max=160)
    planner = Planner(runner, jobs, seed=depth, depth=depth, chunk_max=13, preempt_chance=0.03)
    try:
        outputs = planner.run()
    finally:
        runner.close()
    plain = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    assert outputs == [greedy(plain, j.prompt, j.max_tokens, j.stop_ids) for j in jobs]
    assert planner.preemptions
    assert {len(output) for output in outputs} != {40}, "some must end by a stop id"
    assert (planner.masked_rows > 0) == (depth > 0)


@pytest.mark.parametrize(
    "promise", [seeded_sampling_does_not_depend_on_the_batch, min_tokens_keeps_stop_ids_away]
)
def test_what_every_runner_owes(tiny_folder: Path, promise: Callable[[Runner], None]) -> None:
    with closing(_runner(tiny_folder, num_blocks=60, tokens_max=30)) as runner:
        promise(runner)


SMALL = Capacity(
    num_blocks=8,
    block_size=4,
    rows_max=4,
    tokens_max=8,
    lanes=4,
    model_len_max=16,
    vocab_size=261,
)


@pytest.fixture
def runner(tiny_folder: Path) -> Iterator[TorchRunner]:
    model = load_model(tiny_folder, torch.float32, torch.device("cpu"))
    made = TorchRunner(model, SMALL, "tiny")
    made.begin(1)
    yield made
    made.close()


def test_logits_that_are_not_finite_hurt_their_row_alone(runner: TorchRunner) -> None:
    bad_token = 77
    embedding = runner._step._model.module.get_input_embeddings()
    embedding.weight.data[bad_token] = float("nan")
    jobs = [Job([5, 6, 7], 4), Job([5, bad_token, 7], 4), Job([8, 9], 4), Job([5, 6, 7], 4)]
    jobs[3].arrives_at_step = 4  # and gets the blocks of the bad one
    planner = Planner(runner, jobs, depth=1)
    outputs = planner.run()
    assert [len(output) for output in outputs] == [4, 0, 4, 4]
    assert outputs[0] == outputs[3]
    assert [sequence.failed for sequence in planner.sequences] == [False, True, False, False]


def test_what_others_left_in_the_cache_does_no_harm(runner: TorchRunner) -> None:
    jobs = [Job([5, 6, 7], 6), Job([8, 9], 5)]
    clean = Planner(runner, jobs).run()
    for tensor in (*runner._step._cache.keys, *runner._step._cache.values):
        tensor.fill_(float("nan"))
    assert Planner(runner, jobs, seed=1).run() == clean


def test_a_step_that_raises_ends_the_epoch_and_the_next_epoch_works(runner: TorchRunner) -> None:
    module = runner._step._model.module
    forward = module.forward
    module.forward = lambda **_: (_ for _ in ()).throw(ValueError("out of luck"))
    with pytest.raises(RunnerError, match="ValueError: out of luck"):
        Planner(runner, [Job([5, 6, 7], 4)], depth=2).run()
    module.forward = forward
    assert len(Planner(runner, [Job([5, 6, 7], 4)]).run()[0]) == 4


def test_close_waits_for_the_running_step_alone(runner: TorchRunner) -> None:
    module, begun, go_on = runner._step._model.module, threading.Event(), threading.Event()
    forward, calls = module.forward, list[None]()

    def slow_forward(**inputs: Any) -> Any:
        calls.append(None)
        begun.set()
        go_on.wait(10.0)
        return forward(**inputs)

    module.forward = slow_forward
    planner = Planner(runner, [Job([5, 6, 7], 9)], depth=2)
    planner.begin()
    for _ in range(3):  # as many as may be in flight: more would overwrite their frames
        planner.publish_next()
    assert begun.wait(10.0)
    closer = threading.Thread(target=runner.close)
    closer.start()
    while runner._epoch == 1:
        os.sched_yield()
    go_on.set()
    closer.join(10.0)
    assert len(calls) == 1


def test_smollm2_equals_plain_greedy() -> None:
    folder = embedded_folder()
    jobs = stopping_jobs(6, 1, prompt_lens=(5, 120), max_tokens=16, arrivals=5, vocab_size=40000)
    for job in jobs:
        job.stop_ids = (2,)
    runner = _runner(folder, num_blocks=120, tokens_max=128)
    planner = Planner(runner, jobs, depth=1, chunk_max=50, preempt_chance=0.05)
    try:
        outputs = planner.run()
    finally:
        runner.close()
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert outputs == [greedy(plain, j.prompt, j.max_tokens, j.stop_ids) for j in jobs]
    assert planner.preemptions
