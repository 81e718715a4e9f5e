"""Simulated with steady steps taken at once or one by one: every number is the same, to the bit."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.core import Scheduler, SchedulerConfig, Stats, StepOutput
from scheduler_svc.core.policies import BY_NAME, Fcfs
from scheduler_svc.simulate.cost import CostModel, load
from scheduler_svc.simulate.machine import Machine, Outcome
from scheduler_svc.simulate.workload import Arrival
from svc_wire.frames import StepResult

NONE = np.empty(0)
"""One object for both: arrays do not say whether they are equal."""


def _cost(rng: random.Random) -> CostModel:
    return CostModel(
        name="any",
        origin="drawn",
        base_s=rng.uniform(1e-3, 1e-2),
        row_s=rng.uniform(0, 1e-4),
        context_token_s=rng.uniform(0, 1e-6),
        token_s=rng.uniform(1e-6, 1e-4),
        block_copy_s=rng.choice([0.0, rng.uniform(1e-7, 1e-5)]),
        num_blocks=rng.choice([12, 40, 400]),
        block_size=rng.choice([1, 4, 16]),
        block_bytes=100,
        model_len_max=400,
    )


def _arrivals(rng: random.Random, model: CostModel) -> list[Arrival]:
    """A few bursts, equal prefixes, lengths at borders of blocks."""
    fits = min(model.model_len_max, model.num_blocks * model.block_size)
    arrivals = []
    for _ in range(rng.randint(1, 12)):
        prompt = rng.randint(1, max(1, fits // 2))
        arrivals.append(
            Arrival(
                at_s=rng.choice([0.0, rng.uniform(0, 5), round(rng.uniform(0, 3), 1)]),
                prompt_tokens=prompt,
                output_tokens=rng.randint(1, min(100, fits - prompt)),
                tenant=rng.choice("ab"),
                prefix=tuple(range(rng.randint(0, prompt // 8))),
                prefix_run=8,
            )
        )
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def _run(seed: int, *, coasts: bool) -> tuple[Outcome, Stats, float]:
    rng = random.Random(seed)
    model = _cost(rng)
    arrivals = _arrivals(rng, model)
    config = SchedulerConfig(
        depth=rng.randint(0, 2),
        step_tokens_max=rng.choice([8, 64, 500]),
        running_max=rng.choice([1, 3, 8]),
        waiting_max=len(arrivals),
        prefix_cache=rng.random() < 0.7,
        itl_target_ms=rng.choice([0.0, 8.0]),
    )
    policy = BY_NAME[rng.choice(sorted(BY_NAME))]()
    swap_bytes = 100 * rng.choice([0, 5, 400])
    machine = Machine(policy, model, config, swap_bytes=swap_bytes, coasts=coasts)
    outcome = machine.run(arrivals, rng.choice([float("inf"), 1.0]))
    machine._core.check()
    return outcome, machine._core.stats(), machine._core._pace.step_s


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_steps_at_once_are_the_same_as_one_by_one(seed: int) -> None:
    (one, one_stats, one_pace), (many, many_stats, many_pace) = (
        _run(seed, coasts=coasts) for coasts in (False, True)
    )
    assert repr(many.lives) == repr(one.lives)  # NaN is not equal to itself
    assert many.gaps_s.tolist() == one.gaps_s.tolist()
    assert replace(many, lives=[], gaps_s=NONE) == replace(one, lives=[], gaps_s=NONE)
    assert many_stats == one_stats
    assert many_pace == one_pace


def test_most_steps_of_a_quiet_server_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Counter[str]()
    commit = Scheduler.commit

    def counting_commit(core: Scheduler, result: StepResult) -> StepOutput:
        commits["one"] += 1
        return commit(core, result)

    monkeypatch.setattr(Scheduler, "commit", counting_commit)
    arrivals = [Arrival(at_s=3.0 * n, prompt_tokens=20, output_tokens=200) for n in range(3)]
    outcome = Machine(Fcfs(), load("llama-8b"), SchedulerConfig()).run(arrivals)
    assert outcome.steps == 600
    assert commits["one"] < 30
