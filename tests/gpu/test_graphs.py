"""What is captured, when, and what happens when it cannot be."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from executor_svc.recipe import PLAIN
from svc_wire.capacity import Capacity
from tests.model.penalised import draw_jobs
from tests.support.planner import Job, Planner

if TYPE_CHECKING:
    from executor_svc.cuda.graphs import Graphs
    from executor_svc.cuda.runner import CudaRunner

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

CAPACITY = Capacity(
    num_blocks=300, block_size=4, rows_max=24, tokens_max=96, lanes=32, model_len_max=160,
    vocab_size=512,
)  # fmt: skip


def make_runner(graphs: bool = True) -> "CudaRunner":
    """bf16 and wide enough that few rows take our own matrix products."""
    from transformers import LlamaConfig

    from executor_svc.cuda.runner import CudaOptions, CudaRunner
    from executor_svc.model import random_model

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=1024, intermediate_size=2048, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=2, head_dim=128, max_position_embeddings=256,
    )  # fmt: skip
    model = random_model(config, torch.bfloat16, torch.device("cuda:0"))
    options = CudaOptions(attention="triton", graphs=graphs)
    return CudaRunner(model, CAPACITY, "random", options)


@pytest.fixture(scope="module")
def runner() -> "Iterator[CudaRunner]":
    made = make_runner()
    made.capture()
    yield made
    made.close()


def plain_jobs(seed: int) -> list[Job]:
    return [Job(job.prompt, job.max_tokens) for job in draw_jobs(24, seed)]


def run(runner: "CudaRunner", jobs: list[Job]) -> list[list[int]]:
    return Planner(runner, jobs, seed=1, depth=1, chunk_max=31).run()


def test_graphs_give_the_bits_of_what_they_captured(runner: "CudaRunner") -> None:
    """Our matrix products and early launches in them, at their borders with the attention."""
    direct = make_runner(graphs=False)
    try:
        assert not direct._graphs.keys
        assert run(runner, plain_jobs(1)) == run(direct, plain_jobs(1))
    finally:
        direct.close()


def test_after_the_start_no_request_waits_for_a_graph_but_that_of_its_choice(
    runner: "CudaRunner",
) -> None:
    at_start = runner._graphs.keys
    assert {key[3] for key in at_start if key[0] == "choice"} == {PLAIN}
    assert {"decode", "choice", "segment", "logits"} == {key[0] for key in at_start}
    run(runner, plain_jobs(2))
    assert runner._graphs.keys == at_start
    run(runner, draw_jobs(24, seed=3))  # with penalties, log-probabilities, ways to draw
    new = runner._graphs.keys - at_start
    assert {key[0] for key in new} == {"choice"}
    assert {key[2] for key in new} <= set(runner._buckets), "rows are padded to buckets"


@pytest.fixture
def graphs() -> "Iterator[Graphs]":
    from executor_svc.cuda.graphs import Graphs

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield Graphs(stream)
        stream.synchronize()


def test_what_fails_while_it_is_captured_is_launched_for_good(graphs: "Graphs") -> None:
    bad, good = torch.zeros(2, 1, device="cuda")

    def enqueue_good() -> None:
        good.add_(1)

    def enqueue() -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("cannot be captured")
        bad.add_(1)

    for _ in range(6):
        graphs.run(("bad",), enqueue)
    assert not torch.cuda.is_current_stream_capturing()
    for _ in range(6):
        graphs.run(("good",), enqueue_good)
    assert (bad.item(), good.item()) == (6, 6)
    assert graphs.keys == {("good",)}
    with pytest.raises(RuntimeError, match="cannot be captured"):
        graphs.prepare(("bad",), enqueue)


def test_a_graph_gets_the_memory_that_the_allocator_keeps(graphs: "Graphs") -> None:
    """As when a server is full: a capture cannot take back what is cached for others."""
    piece, size = torch.zeros(1, device="cuda"), 1 << 30
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    room = torch.cuda.memory_reserved() + 3 * size // 2
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        for _ in range(6):

            def enqueue() -> None:
                piece.add_(torch.ones(size // 4, device="cuda")[:1])

            graphs.run(("large",), enqueue)
        assert graphs.keys == {("large",)}
        assert piece.item() == 6
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


@pytest.mark.parametrize("tokens_max", [1, 7, 16, 17, 100, 384, 2048, 8192])
def test_the_largest_bucket_is_the_longest_step_that_takes_one(tokens_max: int) -> None:
    from executor_svc.cuda.segments import TOKENS_MAX, token_buckets

    buckets = token_buckets(tokens_max)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == min(tokens_max, TOKENS_MAX)


def test_layers_of_different_shapes_are_not_fused(runner: "CudaRunner") -> None:
    """There is one room for what crosses the attention of all layers."""
    from executor_svc.cuda.fused import FusedModel, NotFusable

    model = runner._step._model
    odd = dataclasses.replace(model.layers[0], query_heads=16)
    with pytest.raises(NotFusable, match="differ in shape"):
        FusedModel(dataclasses.replace(model, layers=(model.layers[0], odd)), [], 16)
