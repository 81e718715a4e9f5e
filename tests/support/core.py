"""A small core for unit tests, with a frame to plan into."""

from typing import Any

import numpy as np

from scheduler_svc.core import PlannedStep, Policy, Request, Scheduler, SchedulerConfig
from scheduler_svc.core.policies import Fcfs
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, StepResult, StepTiming
from svc_wire.ids import RowStatus
from tests.support.plans import plan_buffer

CAPACITY = Capacity(
    num_blocks=16, block_size=4, rows_max=8, tokens_max=64, lanes=8, model_len_max=40, vocab_size=90
)


def request(prompt_len: int = 3, max_tokens: int = 4, **changes: Any) -> Request:
    prompt = np.arange(1, prompt_len + 1, dtype=np.int32)
    return Request(prompt=prompt, max_tokens=max_tokens, **changes)


def scheduler(policy: Policy | None = None, **changes: Any) -> Scheduler:
    """A core with an executor of CAPACITY, in epoch 1."""
    core = Scheduler(SchedulerConfig(**{"depth": 0, **changes}), policy or Fcfs())
    core.attach(CAPACITY, 1)
    return core


def plan(core: Scheduler) -> PlannedStep | None:
    return core.plan(PlanFrame(plan_buffer(CAPACITY), CAPACITY, writable=True))


def result(
    step: int, *rows: tuple[RowStatus, int], epoch: int = 1, took_ms: float = 0.0
) -> StepResult:
    """A result with these (status, token) rows."""
    return StepResult(
        epoch,
        step,
        np.array([status for status, _ in rows], np.uint8),
        np.array([token for _, token in rows], np.int32),
        StepTiming(compute_end_ns=int(took_ms * 1e6)),
    )
