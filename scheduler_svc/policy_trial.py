"""Worlds made to break a policy.

Each has the real core, a tiny pool of memory, few places, requests of several tenants, aborts and a
lost executor, and checks every invariant after every step.
"""

import random
from dataclasses import dataclass, field

import numpy as np

from scheduler_svc.core import Policy, Question, Rejection, Request, Scheduler, SchedulerConfig
from scheduler_svc.core.types import PlannedStep
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, StepResult, StepTiming
from svc_wire.ids import FinishReason, SeqId
from svc_wire.layout import plan_dtype

REQUESTS = 30
STEPS_MAX = 3000
OVERTAKES_MAX = 20
ANSWERS_S_MAX = 2.0
"""For all answers in a world, which are some thousand at most. More than one answer can count for:
a process that is stopped for a while is nobody's fault."""

CAPACITY = Capacity(
    num_blocks=14, block_size=4, rows_max=4, tokens_max=16, lanes=5, model_len_max=48, vocab_size=50
)


@dataclass(slots=True)
class Findings:
    """What was found in all worlds."""

    worlds: int = 0
    requests: int = 0
    refused: int = 0
    preemptions: int = 0
    reliefs: int = 0
    faults: list[str] = field(default_factory=list)
    key_us: float = 0.0


class World:
    """One seed: requests come and go, steps are computed, the executor is lost once."""

    def __init__(self, seed: int, policy: Policy, question: Question, found: Findings) -> None:
        self._rng = random.Random(seed)
        self._found = found
        self._policy = policy
        self._core = Scheduler(
            SchedulerConfig(
                depth=self._rng.choice([0, 1, 2]),
                step_tokens_max=self._rng.choice([4, 9, 16]),
                running_max=4,
                overtakes_max=OVERTAKES_MAX,
            ),
            policy,
            question,
        )
        self._frame = PlanFrame(bytearray(plan_dtype(CAPACITY).itemsize), CAPACITY, writable=True)
        self._in_flight: list[PlannedStep] = []
        self._epoch = 1
        self._now_s = 0.0
        self._live: set[SeqId] = set()

    def run(self) -> None:
        question, before_s = self._core.question, self._core.question.took_s
        self._core.attach(CAPACITY, self._epoch)
        left, steps = REQUESTS, 0
        lose_at = self._rng.randrange(100)
        while left or self._live:
            question.begin_turn()
            while left and self._rng.random() < 0.3:
                left -= 1
                self._add()
            self._abort_sometimes()
            self._step()
            steps += 1
            if steps == lose_at:
                self._lose()
            self._core.check()
            took_s = question.took_s - before_s
            if took_s > ANSWERS_S_MAX and self._core.policy is self._policy:
                self._core.distrust_policy(f"its answers took {took_s:.1f} s in {steps} steps")
            if steps > STEPS_MAX:
                self._found.faults.append(f"{len(self._live)} requests never ended")
                break
        self._take_stock()

    def _take_stock(self) -> None:
        stats = self._core.stats()
        self._found.worlds += 1
        self._found.preemptions += stats.preemptions
        self._found.reliefs += stats.reliefs
        if stats.policy_faults:
            self._found.faults.append(self._core.policy_fault)

    def _add(self) -> None:
        rng = self._rng
        prompt = rng.randint(1, 30)
        self._found.requests += 1
        request = Request(
            prompt=np.array([rng.randrange(3) for _ in range(prompt)], np.int32),
            max_tokens=rng.randint(1, 40 - prompt),
            priority=rng.choice([0, 0, 5]),
            tenant=rng.choice(["", "a", "b"]),
            expected_tokens=rng.choice([0, 3]),
            deadline_s=self._now_s + rng.choice([5.0, 100.0, float("inf")]),
        )
        try:
            self._live.add(self._core.add(request, self._now_s))
        except Rejection:
            self._found.refused += 1

    def _abort_sometimes(self) -> None:
        if self._live and self._rng.random() < 0.02:
            ending = self._core.abort(self._rng.choice(sorted(self._live)), FinishReason.ABORT)
            if ending:
                self._live.discard(ending.seq_id)

    def _step(self) -> None:
        """Plans what the depth allows; then the oldest step in flight is done."""
        while planned := self._core.plan(self._frame):
            self._in_flight.append(planned)
        self._now_s += 0.05
        if not self._in_flight:
            return
        done = self._in_flight.pop(0)
        timing = StepTiming(compute_end_ns=50_000_000)
        status, tokens = np.zeros(done.rows, np.uint8), np.zeros(done.rows, np.int32)
        output = self._core.commit(StepResult(done.epoch, done.step, status, tokens, timing))
        self._live -= {ending.seq_id for ending in output.endings}

    def _lose(self) -> None:
        self._in_flight.clear()
        self._epoch += 1
        endings = [*self._core.executor_lost(), *self._core.attach(CAPACITY, self._epoch)]
        self._live -= {ending.seq_id for ending in endings}
