"""The CUDA runner against plain greedy decoding, and against itself."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from executor_svc.runner import Runner
from svc_wire.capacity import Capacity
from tests.model.greedy import greedy
from tests.model.promises import (
    min_tokens_keeps_stop_ids_away,
    seeded_sampling_does_not_depend_on_the_batch,
)
from tests.support.planner import Job, Planner
from tests.tiny_model import EOS

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def make_runner(
    folder: Path, dtype: str = "float32", num_blocks: int = 160, **options: Any
) -> Runner:
    from executor_svc.cuda.runner import CudaOptions, CudaRunner
    from executor_svc.model import DTYPES, load_model

    model = load_model(folder, DTYPES[dtype], torch.device("cuda:0"))
    capacity = Capacity(
        num_blocks=num_blocks, block_size=4, rows_max=24, tokens_max=96, lanes=32,
        model_len_max=160, vocab_size=model.vocab_size,
    )  # fmt: skip
    return CudaRunner(model, capacity, "tiny", CudaOptions(**options))


@pytest.fixture(scope="module")
def runner(tiny_folder: Path) -> Iterator[Runner]:
    made = make_runner(tiny_folder)
    yield made
    made.close()


def mixed_jobs(count: int, seed: int) -> list[Job]:
    rng = random.Random(seed)
    return [
        Job(
            [rng.randrange(5, 261) for _ in range(rng.randint(1, 90))],
            max_tokens=rng.randint(1, 40),
            stop_ids=(EOS, rng.randrange(5, 261), rng.randrange(5, 261))
            if rng.random() < 0.7
            else (),
            arrives_at_step=rng.randrange(60),
        )
        for _ in range(count)
    ]


def run(runner: Runner, jobs: list[Job], depth: int) -> tuple[list[list[int]], Planner]:
    planner = Planner(runner, jobs, seed=3, depth=depth, chunk_max=29, preempt_chance=0.03)
    return planner.run(), planner


def test_64_mixed_requests_equal_plain_greedy_at_every_depth(
    runner: Runner, tiny_folder: Path
) -> None:
    """float32, chunked prompts, stop ids, preemption; the reference is eager and unfused."""
    jobs = mixed_jobs(64, seed=1)
    plain = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    expected = [greedy(plain, job.prompt, job.max_tokens, job.stop_ids) for job in jobs]
    for depth in (0, 1, 2):
        outputs, planner = run(runner, jobs, depth)
        assert outputs == expected
        assert planner.preemptions
        assert (planner.masked_rows > 0) == (depth > 0)


@pytest.mark.parametrize(
    "options", [{"fused": False}, {"graphs": False}, {"fused": False, "graphs": False}]
)
def test_fusing_and_graphs_change_no_token(
    runner: Runner, tiny_folder: Path, options: dict[str, Any]
) -> None:
    jobs = mixed_jobs(16, seed=2)
    expected, _ = run(runner, jobs, 1)
    other = make_runner(tiny_folder, **options)
    try:
        assert run(other, jobs, 1)[0] == expected
    finally:
        other.close()


def test_captured_at_start_equals_captured_on_the_way(runner: Runner, tiny_folder: Path) -> None:
    jobs = mixed_jobs(16, seed=5)
    expected, _ = run(runner, jobs, 1)
    captured = runner._graphs.keys  # type: ignore[attr-defined]
    assert {"decode", "choice", "segment", "logits"} == {key[0] for key in captured}
    other = make_runner(tiny_folder)
    try:
        other.capture()  # type: ignore[attr-defined]
        assert run(other, jobs, 1)[0] == expected
    finally:
        other.close()


def test_mixed_steps_that_are_too_long_for_graphs_give_the_same_tokens(
    runner: Runner, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from executor_svc.cuda import segments

    jobs = mixed_jobs(16, seed=8)
    expected, _ = run(runner, jobs, 1)
    monkeypatch.setattr(segments, "TOKENS_MAX", 32)
    other = make_runner(tiny_folder)
    try:
        assert run(other, jobs, 1)[0] == expected
        captured = other._graphs.keys  # type: ignore[attr-defined]
        assert max(key[1] for key in captured if key[0] == "segment") == 32
    finally:
        other.close()


def test_without_memory_for_graphs_steps_are_launched_one_by_one(
    runner: Runner, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = mixed_jobs(16, seed=7)
    expected, _ = run(runner, jobs, 1)
    other = make_runner(tiny_folder)

    def no_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", no_memory)
    try:
        assert run(other, jobs, 1)[0] == expected
        assert not other._graphs.keys  # type: ignore[attr-defined]
    finally:
        other.close()


def test_a_folder_is_served_as_the_configuration_says(tiny_folder: Path, runner: Runner) -> None:
    from executor_svc.assembly import make_runner as assemble
    from executor_svc.config import ExecutorConfig

    config = ExecutorConfig(
        model=str(tiny_folder), dtype="float32", device="cuda", rows_max=24, num_blocks=160,
        block_size=4, model_len_max=160,
    )  # fmt: skip
    served = assemble(config)
    try:
        jobs = mixed_jobs(8, seed=6)
        assert run(served, jobs, 1)[0] == run(runner, jobs, 1)[0]
    finally:
        served.close()
    assert served.model.device == "cuda:0"


@pytest.mark.parametrize(
    "promise", [seeded_sampling_does_not_depend_on_the_batch, min_tokens_keeps_stop_ids_away]
)
def test_what_every_runner_owes(runner: Runner, promise: Callable[[Runner], None]) -> None:
    promise(runner)


def test_logits_that_are_not_finite_hurt_their_row_alone(tiny_folder: Path) -> None:
    runner = make_runner(tiny_folder, fused=True)
    try:
        bad_token = 77
        runner._step._model.module.get_input_embeddings().weight.data[bad_token] = float("nan")  # type: ignore[attr-defined]
        jobs = [Job([5, 6, 7], 4), Job([5, bad_token, 7], 4), Job([8, 9], 4), Job([5, 6, 7], 4)]
        jobs[3].arrives_at_step = 4  # and gets the blocks of the bad one
        planner = Planner(runner, jobs, depth=1)
        outputs = planner.run()
    finally:
        runner.close()
    assert [len(output) for output in outputs] == [4, 0, 4, 4]
    assert outputs[0] == outputs[3]
    assert [sequence.failed for sequence in planner.sequences] == [False, True, False, False]


def test_what_others_left_in_the_cache_does_no_harm(runner: Runner) -> None:
    from executor_svc.cuda.runner import CudaRunner

    assert isinstance(runner, CudaRunner)
    jobs = mixed_jobs(12, seed=8)
    clean, _ = run(runner, jobs, 1)
    cache = runner._step._cache
    for tensor in (*cache.keys, *cache.values):
        tensor[: cache.num_blocks].fill_(float("nan"))  # the scrap block stays finite
    again, _ = run(runner, jobs, 1)
    for tensor in (*cache.keys, *cache.values):
        tensor.zero_()
    assert again == clean


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_gives_the_same_tokens_at_every_depth(tiny_folder: Path, dtype: str) -> None:
    """Without stop ids and waiting the batches are the same, and so is every bit."""
    jobs = mixed_jobs(20, seed=9)
    for job in jobs:
        job.stop_ids, job.arrives_at_step = (), 0
    made = make_runner(tiny_folder, dtype, num_blocks=800)  # room for all of them
    try:
        outputs = [Planner(made, jobs, depth=d, chunk_max=29).run() for d in (0, 1, 2)]
    finally:
        made.close()
    assert outputs[0] == outputs[1] == outputs[2]
    assert [len(output) for output in outputs[0]] == [job.max_tokens for job in jobs]


def test_timings_are_in_order_and_on_one_clock(runner: Runner) -> None:
    from executor_svc.cuda.runner import CudaRunner

    assert isinstance(runner, CudaRunner)
    seen = []
    collect = runner._collect
    runner._collect = lambda flight: seen.append(collect(flight)) or seen[-1]  # type: ignore
    try:
        Planner(runner, [Job([5, 6, 7], 30)], depth=1).run()
    finally:
        del runner._collect
    for before, after in pairwise(seen):
        t = after.timing
        device = t.as_tuple()[3:]
        assert list(device) == sorted(device)
        assert before.timing.compute_end_ns <= t.compute_begin_ns
        assert t.received_ns <= t.submitted_ns <= t.completed_ns


@pytest.mark.parametrize("shape", ["llama", "qwen3"])
def test_flashinfer_and_triton_attention_agree(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16: both backends, and mixed steps that take the one or the other in turns."""
    pytest.importorskip("flashinfer")
    from executor_svc.cuda import flashinfer_attention

    def outputs_of(attention: str) -> tuple[list[list[int]], set[tuple[bool, bool]]]:
        made = make_random_runner(shape, attention)
        try:
            seen = observe_work(made)
            return Planner(made, jobs, depth=1, chunk_max=120).run(), seen
        finally:
            made.close()

    rng = random.Random(7)
    jobs = [
        Job([rng.randrange(5, 512) for _ in range(rng.randint(100, 300))], 4) for _ in range(16)
    ]
    ours, _ = outputs_of("triton")
    for rule, mixed in (
        (lambda *_: False, {True}),
        (lambda plan, *_: plan.step % 3 == 0, {True, False}),
    ):
        monkeypatch.setattr(flashinfer_attention, "is_ours_quicker", rule)
        others, seen = outputs_of("flashinfer")
        same = sum(a == b for a, b in zip(ours, others, strict=True))
        assert same >= 12, "bf16 may turn a near tie, not more"
        assert seen == {(True, False), *((False, work) for work in mixed)}


def make_random_runner(shape: str, attention: str) -> Any:
    from transformers import LlamaConfig, Qwen3Config

    from executor_svc.cuda.runner import CudaOptions, CudaRunner
    from executor_svc.model import random_model

    torch.manual_seed(0)
    kind = {"llama": LlamaConfig, "qwen3": Qwen3Config}[shape]
    config = kind(
        vocab_size=512, hidden_size=1024, intermediate_size=2048, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=2, head_dim=128, max_position_embeddings=2048,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    capacity = Capacity(
        num_blocks=300, block_size=16, rows_max=16, tokens_max=512, lanes=16, model_len_max=512,
        vocab_size=512,
    )  # fmt: skip
    model = random_model(config, torch.bfloat16, torch.device("cuda:0"))
    return CudaRunner(model, capacity, "x", CudaOptions(attention=attention))


def observe_work(runner: Any) -> set[tuple[bool, bool]]:
    """Fills with (is a decode step, is FlashInfer's) of every step that is planned."""
    seen: set[tuple[bool, bool]] = set()
    attention = runner._attention
    plan = attention.plan

    def planned(batch: Any, step: Any) -> None:
        plan(batch, step)
        works = getattr(attention, "_work", [None, None])
        seen.add((step.is_decode, works[step.slot] is not None))

    attention.plan = planned
    return seen
