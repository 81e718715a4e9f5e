"""HashRunner equals its oracle under everything a scheduler may do, and notices what it may not."""

import random
import subprocess
import sys
import time

import numpy as np
import pytest

from executor_svc.hash_model import (
    expected_logprobs,
    expected_tokens,
    finalise,
    finalise_all,
    mark,
    salt,
    salts,
    strength,
    strengths,
)
from executor_svc.hash_runner import HashRunner
from executor_svc.runner import RunnerError
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame
from svc_wire.frontend_link import Sampling
from svc_wire.ids import RowStatus
from svc_wire.layout import plan_dtype
from tests.support.planner import Job, Planner


def _capacity(rng: random.Random) -> Capacity:
    block_size = rng.randint(1, 5)
    return Capacity(
        num_blocks=-(-60 // block_size) + rng.randint(0, 40),
        block_size=block_size,
        rows_max=rng.randint(1, 5),
        tokens_max=rng.randint(5, 30),
        lanes=rng.randint(5, 8),
        model_len_max=60,
        vocab_size=rng.choice([13, 257]),
        host_blocks=rng.choice([0, 4, 60]),
    )


def _job(rng: random.Random, vocab: int) -> Job:
    return Job(
        [rng.randrange(vocab) for _ in range(rng.randint(1, 30))],
        rng.randint(1, 30),
        Sampling(
            temperature=rng.choice([0.0, 0.7]),
            top_k=rng.choice([0, 5]),
            top_p=rng.choice([1.0, 0.9]),
            min_p=rng.choice([0.0, 0.1]),
            seed=rng.randrange(-(2**63), 2**63),
            repetition_penalty=rng.choice([1.0, 1.0, 1.5]),
            presence_penalty=rng.choice([0.0, 0.0, -0.5]),
            frequency_penalty=rng.choice([0.0, 0.0, 0.25]),
        ),
        stop_ids=rng.choice([(), (2,), (2, 3, 5)]),
        min_tokens=rng.choice([0, 0, 6]),
        arrives_at_step=rng.randrange(30),
        logprobs=rng.choice([None, None, 0, 1, 5]),
    )


def _expected(job: Job, vocab: int) -> list[int]:
    return expected_tokens(
        job.prompt,
        vocab_size=vocab,
        max_tokens=job.max_tokens,
        sampling=job.sampling,
        stop_ids=job.stop_ids,
        min_tokens=job.min_tokens,
    )


@pytest.mark.parametrize("seed", range(60))
def test_equals_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    capacity = _capacity(rng)
    jobs = [_job(rng, capacity.vocab_size) for _ in range(rng.randint(1, 9))]
    planner = Planner(
        HashRunner(capacity),
        jobs,
        seed=seed,
        depth=rng.randint(0, 2),
        chunk_max=rng.randint(1, 9),
        preempt_chance=rng.choice([0.0, 0.05]),
        swap_chance=rng.choice([0.0, 0.5, 1.0]),
    )
    assert planner.run() == [_expected(job, capacity.vocab_size) for job in jobs]
    for sequence in planner.sequences:
        asked, begin = sequence.job.logprobs, len(sequence.job.prompt)
        assert sequence.logprobs == [
            expected_logprobs(position, token, asked, capacity.vocab_size)
            for position, token in enumerate(sequence.output, begin)
            if asked is not None
        ]


@pytest.mark.parametrize(
    "other",
    [
        Sampling(temperature=0.5, seed=1),
        Sampling(temperature=1.0, seed=2),
        Sampling(temperature=1.0, seed=1 + 2**32),
        Sampling(temperature=1.0, seed=1, top_k=3),
        Sampling(temperature=1.0, seed=1, top_p=0.5),
        Sampling(temperature=1.0, seed=1, min_p=0.5),
        Sampling(temperature=1.0, seed=1, repetition_penalty=1.1),
        Sampling(temperature=1.0, seed=1, presence_penalty=0.1),
        Sampling(temperature=1.0, seed=1, frequency_penalty=0.1),
        Sampling(),
    ],
)
def test_every_sampling_parameter_counts(other: Sampling) -> None:
    def run(sampling: Sampling) -> list[int]:
        return expected_tokens([1, 2, 3], vocab_size=257, max_tokens=8, sampling=sampling)

    assert run(other) != run(Sampling(temperature=1.0, seed=1))


def test_penalties_see_which_tokens_how_often_and_whose() -> None:
    penalised = Sampling(frequency_penalty=0.5)
    marks = {mark(token, is_output=output) for token in range(257) for output in (False, True)}
    assert len(marks) == 2 * 257
    assert strength(penalised) % 2**64
    assert strength(Sampling()) == 0


@pytest.mark.parametrize("first", [True, False])
def test_a_history_that_is_not_whole_changes_the_output(first: bool) -> None:
    """Tokens that a prefix-cache hit, or another lane, spared this one."""
    job = Job([1, 2, 3, 4, 5, 6], 8, Sampling(presence_penalty=1.0))
    planner = _begun(job)
    runner, lane = planner.runner, planner.sequences[0].lane
    assert isinstance(runner, HashRunner)
    assert runner._lane_history[lane]
    runner._lane_history[lane] -= np.uint64(mark(1, is_output=False))
    if first:
        runner._lane_history[lane] += np.uint64(mark(1, is_output=False))
    while not planner.sequences[0].ended:
        assert planner.publish_next()
        planner._commit()
    assert (planner.sequences[0].output == _expected(job, 257)) is first


def test_greedy_ignores_the_seed() -> None:
    assert salt(Sampling(seed=5, top_k=3)) == salt(Sampling())


def test_scalar_and_vector_definitions_agree() -> None:
    values = np.random.default_rng(0).integers(0, 2**64, 100, np.uint64)
    assert finalise_all(values).tolist() == [finalise(int(value)) for value in values]
    rng = random.Random(0)
    frame = PlanFrame(bytearray(plan_dtype(SMALL).itemsize), SMALL, writable=True)
    jobs = [_job(rng, SMALL.vocab_size) for _ in range(SMALL.rows_max)]
    for r, job in enumerate(jobs):
        for name in Sampling.__struct_fields__:
            getattr(frame, name)[r] = getattr(job.sampling, name)
    # salts needs the parameter arrays alone, which a frame has as well as a plan.
    assert salts(frame).tolist() == [salt(job.sampling) for job in jobs]  # type: ignore[arg-type]
    for job, found in zip(jobs, strengths(frame).tolist(), strict=True):  # type: ignore[arg-type]
        assert strength(job.sampling) == (found if job.sampling.has_penalties else 0)


SMALL = Capacity(
    num_blocks=16,
    block_size=4,
    rows_max=4,
    tokens_max=16,
    lanes=4,
    model_len_max=32,
    vocab_size=257,
    host_blocks=4,
)


def _begun(job: Job) -> Planner:
    planner = Planner(HashRunner(SMALL), [job], depth=0)
    planner.begin()
    assert planner.publish_next()
    planner._commit()
    return planner


def test_reading_what_was_never_written_is_an_error() -> None:
    planner = _begun(Job([1, 2, 3, 4, 5, 6], 4))
    planner.sequences[0].planned += 1  # position 6 is skipped
    planner.sequences[0].pending += 1
    planner.sequences[0].output.append(7)
    with pytest.raises(
        RunnerError, match=r"position 6 should be in block \d+ offset 2, .* nothing"
    ):
        planner.publish_next()


def test_a_block_of_another_position_is_an_error() -> None:
    planner = _begun(Job([1, 2, 3, 4, 5, 6], 4))
    planner.sequences[0].blocks.reverse()
    with pytest.raises(RunnerError, match=r"position 0 should be in .* holds position 4"):
        planner.publish_next()


def test_kv_memory_outlives_its_epoch() -> None:
    planner = _begun(Job([1, 2, 3, 4, 5, 6], 4))
    planner.begin()
    planner.publish_next()
    planner._commit()
    assert planner.sequences[0].output == _expected(planner.sequences[0].job, 257)[:2]


def _swapped_out() -> Planner:
    """A sequence that waits with its KV in the host, by the order of the next plan."""
    planner = _begun(Job([1, 2, 3, 4, 5, 6], 3))
    planner._swap_chance = 1.0
    planner._preempt(planner.sequences[0])
    assert (planner.swaps, planner.sequences[0].planned) == (1, 6)
    return planner


def test_kv_goes_out_before_it_comes_in() -> None:
    planner = _swapped_out()
    planner.publish_next()  # both in one plan
    planner._commit()
    planner.publish_next()
    planner._commit()
    assert planner.sequences[0].output == _expected(planner.sequences[0].job, 257)


@pytest.mark.parametrize("lost", ["_copies_out", "_copies_in"])
def test_a_copy_that_is_missing_is_an_error(lost: str) -> None:
    planner = _swapped_out()
    fill = planner._admit
    planner._admit = lambda *row: fill(*row) and not getattr(planner, lost).clear()  # type: ignore
    planner._free_blocks.insert(0, planner._free_blocks.pop())  # it must not get its own ones back
    planner._free_blocks.insert(0, planner._free_blocks.pop())
    with pytest.raises(RunnerError, match=r"position \d+ should be in .* nothing"):
        planner.publish_next()


def test_wrong_tokens_change_the_output() -> None:
    planner = _begun(Job([1, 2, 3, 4, 5, 6], 1))
    runner = planner.runner
    assert isinstance(runner, HashRunner)
    assert planner.sequences[0].output == _expected(planner.sequences[0].job, 257)
    assert expected_tokens([1, 2, 3, 4, 6, 5], vocab_size=257, max_tokens=1) != (
        planner.sequences[0].output
    )


def test_a_stopped_lane_is_masked_and_starts_afresh_without_carry() -> None:
    first = expected_tokens([1, 2, 3], vocab_size=257, max_tokens=1)
    jobs = [Job([1, 2, 3], 5, stop_ids=(first[0],)), Job([9], 3, arrives_at_step=1)]
    planner = Planner(HashRunner(SMALL), jobs, depth=2)
    assert planner.run() == [first, expected_tokens([9], vocab_size=257, max_tokens=3)]
    assert planner.masked_rows


def test_step_ms_makes_results_come_late_and_in_turn() -> None:
    now_ns = [0]
    runner = HashRunner(SMALL, step_ms=10.0, clock_ns=lambda: now_ns[0])
    planner = Planner(runner, [Job([1, 2, 3], 3)], depth=1)
    planner.begin()
    assert planner.publish_next()
    assert planner.publish_next()
    now_ns[0] = 9_999_999
    assert runner.poll() is None
    now_ns[0] = 10_000_000
    result = runner.poll()
    assert result is not None
    assert (result.timing.compute_begin_ns, result.timing.compute_end_ns) == (0, 10_000_000)
    assert runner.poll() is None
    now_ns[0] = 20_000_000
    second = runner.poll()
    assert second is not None
    assert second.row_status.tolist() == [RowStatus.OK]


def test_wait_returns_when_the_time_is_up() -> None:
    runner = HashRunner(SMALL, step_ms=5000.0)
    planner = Planner(runner, [Job([1, 2, 3], 3)])
    planner.begin()
    planner.publish_next()
    begin = time.monotonic()
    assert runner.wait(0.01) is None
    assert time.monotonic() - begin < 2.0


def test_a_tiny_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 8"):
        HashRunner(Capacity(**dict.fromkeys(SMALL.__struct_fields__, 8)))


def test_it_needs_no_torch() -> None:
    code = "import sys, executor_svc.assembly; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
