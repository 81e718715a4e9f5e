"""KV that was swapped out and in gives the same tokens as KV that was computed again, or stayed."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from executor_svc.config import ExecutorConfig
from executor_svc.recording import Record, RecordedRunner
from executor_svc.replay import Replay
from executor_svc.replay import _runner_for as runner_for
from executor_svc.torch_assembly import make_torch_runner
from tests.model.greedy import greedy
from tests.model.jobs import stopping_jobs
from tests.support.planner import Planner

pytestmark = pytest.mark.model


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_swapped_equals_recomputed_equals_undisturbed(tiny_folder: Path, depth: int) -> None:
    jobs = stopping_jobs(8, depth, prompt_lens=(1, 60), max_tokens=24, arrivals=20)
    outputs, counts = [], []
    for num_blocks, host_blocks, swap_chance, preempt_chance in (
        (400, 0, 0.0, 0.0),
        (40, 0, 0.0, 0.1),
        (40, 30, 1.0, 0.1),
        (40, 9, 0.5, 0.3),
    ):
        config = ExecutorConfig(
            model=str(tiny_folder), dtype="float32", threads=1, rows_max=8, block_size=4,
            num_blocks=num_blocks, host_blocks=host_blocks, tokens_max=40, model_len_max=128,
        )  # fmt: skip
        runner = make_torch_runner(config, tiny_folder)
        planner = Planner(
            runner, jobs, seed=depth, depth=depth, chunk_max=13,
            preempt_chance=preempt_chance, swap_chance=swap_chance,
        )  # fmt: skip
        try:
            outputs.append(planner.run())
        finally:
            runner.close()
        counts.append((planner.preemptions, planner.swaps))
    plain = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    assert outputs == [[greedy(plain, j.prompt, j.max_tokens, j.stop_ids) for j in jobs]] * 4
    (none, _), (recomputed, never), (_, swapped), (_, sometimes) = counts
    assert (none, never) == (0, 0)
    assert min(recomputed, swapped, sometimes) > 3


def test_a_record_with_copies_is_run_again(tiny_folder: Path, tmp_path: Path) -> None:
    """On a runner that has measured another time for a copy."""
    config = ExecutorConfig(
        model=str(tiny_folder), dtype="float32", threads=1, rows_max=8, block_size=4,
        num_blocks=40, swap_bytes=1 << 20, tokens_max=40, model_len_max=128,
    )  # fmt: skip
    recorded = RecordedRunner(make_torch_runner(config, tiny_folder), tmp_path / "record")
    jobs = stopping_jobs(5, 5, prompt_lens=(1, 60), max_tokens=24, arrivals=20)
    planner = Planner(recorded, jobs, preempt_chance=0.2, swap_chance=1.0)
    try:
        planner.run()
    finally:
        recorded.close()
    assert planner.swaps
    record = Record(tmp_path / "record")
    runner = runner_for(record.head, str(tiny_folder))
    replay = Replay(record, runner, compares=True)
    try:
        replay.run()
    finally:
        runner.close()
    assert replay.steps > 20
