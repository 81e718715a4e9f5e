"""The core and an executor without a model, driven step by step; every token is judged."""

from collections import deque

import numpy as np

from executor_svc.hash_model import expected_tokens
from scheduler_svc.core import (
    Ending,
    KvIndex,
    PlannedStep,
    Policy,
    Request,
    Scheduler,
    SchedulerConfig,
)
from svc_wire.capacity import Capacity
from svc_wire.ids import FinishReason, SeqId
from svc_wire.ring import FRAMES
from tests.sim.executor import SimExecutor

STEPS_MAX = 2000


class CoreDrive:
    """Plans, executes and commits; asserts invariants, and that each token is the right one."""

    def __init__(self, policy: Policy, capacity: Capacity, **config: int | float) -> None:
        self.core = Scheduler(SchedulerConfig(**config), policy)  # type: ignore[arg-type]
        self.endings: dict[SeqId, Ending] = {}
        self.tokens: dict[SeqId, list[int]] = {}
        self._requests: dict[SeqId, Request] = {}
        self._in_flight: deque[PlannedStep] = deque()
        self._epoch = 0
        self.attach(capacity)

    def attach(self, capacity: Capacity) -> None:
        """A new executor, of maybe another size."""
        self._epoch += 1
        self._executor = SimExecutor(capacity)
        self._executor.begin(self._epoch, 0)
        self._end(self.core.attach(capacity, self._epoch))

    def hand_over(self) -> KvIndex:
        """The same executor in a new epoch, whose scheduler knows what is in its memory."""
        while self._in_flight:
            self._commit()
        kv = self.core.hand_over()
        self._epoch += 1
        self._executor.begin(self._epoch, 0)
        self._end(self.core.attach(self._executor.capacity, self._epoch, kv))
        self.core.check()
        return kv

    def lose(self) -> None:
        self._in_flight.clear()
        self._end(self.core.executor_lost())

    def add(self, prompt: int, max_tokens: int, *, now_s: float = 0.0, **more: object) -> SeqId:
        """A request with `prompt` tokens that no other one shares."""
        vocab_size = self._executor.capacity.vocab_size
        ids = (np.arange(prompt) * 7 + len(self.tokens)) % vocab_size
        request = Request(prompt=ids.astype(np.int32), max_tokens=max_tokens, **more)  # type: ignore[arg-type]
        seq_id = self.core.add(request, now_s)
        self._requests[seq_id], self.tokens[seq_id] = request, []
        return seq_id

    def abort(self, seq_id: SeqId, reason: FinishReason = FinishReason.ABORT) -> None:
        ending = self.core.abort(seq_id, reason)
        self._end([ending] if ending else [])

    def step(self) -> None:
        """Plans as much as the depth allows, then commits the oldest step."""
        while planned := self.core.plan(self._executor.plans[self.core.next_step % FRAMES]):
            self._in_flight.append(planned)
        if self._in_flight:
            self._commit()

    def _commit(self) -> None:
        done = self._in_flight.popleft()
        output = self.core.commit(self._executor.execute(done.step, took_ms=10))
        for seq_id, token in zip(output.seq_ids.tolist(), output.tokens.tolist(), strict=True):
            self.tokens[seq_id].append(token)
        self._end(output.endings)
        self.core.check()

    def run_steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def run(self) -> int:
        """Steps until everybody has ended, and how many that took."""
        steps = 0
        while len(self.endings) < len(self.tokens):
            self.step()
            steps += 1
            assert steps < STEPS_MAX, "no end in sight"
        return steps

    def _end(self, endings: tuple[Ending, ...] | list[Ending]) -> None:
        for ending in endings:
            assert ending.seq_id not in self.endings, "ended twice"
            self.endings[ending.seq_id] = ending
            self._judge(ending)

    def _judge(self, ending: Ending) -> None:
        request, got = self._requests[ending.seq_id], self.tokens[ending.seq_id]
        right = expected_tokens(
            request.prompt.tolist(),
            vocab_size=self._executor.capacity.vocab_size,
            max_tokens=request.max_tokens,
        )
        is_whole = ending.reason is FinishReason.LENGTH
        assert got == (right if is_whole else right[: len(got)])
