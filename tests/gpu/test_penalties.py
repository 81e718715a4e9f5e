"""Penalties and log-probabilities of the CUDA runner, graphs included, against transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import AutoModelForCausalLM

from svc_wire.capacity import Capacity
from svc_wire.ids import LOGPROBS_MAX
from tests.model.penalised import assert_as_decoded, draw_jobs
from tests.support.planner import Job, Planner

if TYPE_CHECKING:
    from executor_svc.cuda.runner import CudaRunner

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def make_runner(folder: Path, dtype: str = "float32", *, graphs: bool = True) -> "CudaRunner":
    from executor_svc.cuda.runner import CudaOptions, CudaRunner
    from executor_svc.model import DTYPES, load_model

    model = load_model(folder, DTYPES[dtype], torch.device("cuda:0"))
    capacity = Capacity(
        num_blocks=160, block_size=4, rows_max=24, tokens_max=96, lanes=32, model_len_max=160,
        vocab_size=model.vocab_size,
    )  # fmt: skip
    return CudaRunner(model, capacity, "tiny", CudaOptions(graphs=graphs))


@pytest.fixture(scope="module", params=[True, False], ids=["graphs", "eager"])
def runner(request: pytest.FixtureRequest, tiny_folder: Path) -> "Iterator[CudaRunner]":
    made = make_runner(tiny_folder, graphs=request.param)
    if request.param:
        made.capture()
    yield made
    made.close()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_penalties_and_logprobs_equal_those_of_transformers(
    runner: "CudaRunner", tiny_folder: Path, depth: int
) -> None:
    """float32, in chunks, in batches, with pre-emptions, in lanes that others had before."""
    jobs = draw_jobs(32, seed=depth)
    planner = Planner(runner, jobs, seed=depth, depth=depth, chunk_max=23, preempt_chance=0.03)
    planner.run()
    assert planner.preemptions
    assert_as_decoded(AutoModelForCausalLM.from_pretrained(tiny_folder).eval(), planner, 1e-3)


def test_others_do_not_notice(runner: "CudaRunner") -> None:
    """Rows without wishes get the same tokens beside rows that have some."""
    plain = [Job(job.prompt, job.max_tokens) for job in draw_jobs(12, seed=5)]
    alone = Planner(runner, plain, depth=1).run()
    together = Planner(runner, [*plain, *draw_jobs(12, seed=6)], depth=1).run()
    assert together[:12] == alone


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_gives_the_same_tokens_at_every_depth(tiny_folder: Path, dtype: str) -> None:
    jobs = draw_jobs(16, seed=8)
    for job in jobs:
        job.stop_ids, job.arrives_at_step = (), 0
    made = make_runner(tiny_folder, dtype)
    try:
        outputs = [Planner(made, jobs, depth=depth, chunk_max=29).run() for depth in (0, 1, 2)]
    finally:
        made.close()
    assert outputs[0] == outputs[1] == outputs[2]


def test_what_nobody_asks_for_is_not_done(runner: "CudaRunner") -> None:
    """No kernel, no copy: the plain recipe is what it was, and only it is captured at the start."""
    from executor_svc.recipe import PLAIN

    seen = set()
    enqueue = runner._pipeline.enqueue

    def watch(*arguments: object) -> None:
        seen.add(len(arguments[-1]))  # type: ignore[arg-type]
        enqueue(*arguments)  # type: ignore[arg-type]

    runner._pipeline.enqueue = watch  # type: ignore
    try:
        Planner(runner, [Job([5, 6, 7], 6)], depth=1).run()
        assert seen == {2}
        Planner(runner, [Job([5, 6, 7], 6, logprobs=0)], depth=1).run()
        assert seen == {2, 3}
        Planner(runner, [Job([5, 6, 7], 6, logprobs=1)], depth=1).run()
        assert seen == {2, 3, 3 + 2 * LOGPROBS_MAX}
    finally:
        runner._pipeline.enqueue = enqueue  # type: ignore
    if runner._step._launcher is runner._graphs:
        assert any(key[-1] == PLAIN for key in runner._graphs.keys)
