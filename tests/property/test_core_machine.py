"""The core as a state machine, against the oracle. It shrinks what it finds; tests/sim does not."""

from collections import deque
from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler_svc.core import PlannedStep, Rejection, Request, Scheduler, SchedulerConfig
from scheduler_svc.core.policies import BY_NAME
from svc_wire.capacity import Capacity
from svc_wire.frames import StepResult
from svc_wire.ids import FinishReason
from svc_wire.ring import FRAMES
from tests.sim.executor import SimExecutor
from tests.sim.ledger import Entry, Ledger
from tests.sim.workload import expected

STEM = list(range(10)) * 3
POLICIES = st.sampled_from(sorted(BY_NAME))
CONFIGS = st.builds(
    SchedulerConfig,
    depth=st.integers(0, 2),
    step_tokens_max=st.integers(1, 12),
    running_max=st.integers(1, 4),
    waiting_max=st.just(100),
    prefix_cache=st.booleans(),
    losses_max=st.just(100),
    overtakes_max=st.sampled_from([1, 1000]),
)
CAPACITIES = st.builds(
    Capacity,
    num_blocks=st.integers(2, 9),
    block_size=st.integers(1, 4),
    rows_max=st.just(4),
    tokens_max=st.just(16),
    lanes=st.integers(4, 5),
    model_len_max=st.integers(8, 24),
    vocab_size=st.just(11),
)


class CoreMachine(RuleBasedStateMachine):
    """A scheduler, an executor that computes when told, and a ledger of what everybody got."""

    @initialize(config=CONFIGS, capacity=CAPACITIES, policy=POLICIES)
    def begin(self, config: SchedulerConfig, capacity: Capacity, policy: str) -> None:
        self.core = Scheduler(config, BY_NAME[policy]())
        self.ledger = Ledger()
        self.published: deque[PlannedStep] = deque()
        self.past: list[StepResult] = []
        self.epoch = 0
        self._attach(capacity)

    @rule(
        shared=st.integers(0, 12),
        own=st.lists(st.integers(0, 10), max_size=6),
        max_tokens=st.integers(1, 8),
        stop_at=st.none() | st.integers(0, 7),
        min_tokens=st.integers(0, 3),
        priority=st.integers(0, 1),
        tenant=st.sampled_from("ab"),
    )
    def add(
        self,
        shared: int,
        own: list[int],
        max_tokens: int,
        stop_at: int | None,
        min_tokens: int,
        priority: int,
        tenant: str,
    ) -> None:
        request = Request(
            prompt=np.array([*STEM[:shared], *own] or [0], np.int32),
            max_tokens=max_tokens,
            priority=priority,
            tenant=tenant,
        )
        if stop_at is not None:
            output = expected(request, self.executor.capacity)
            stop_ids = (output[stop_at % len(output)],)
            min_tokens = min(min_tokens, max_tokens)
            request = replace(request, stop_ids=stop_ids, min_tokens=min_tokens)
        try:
            seq_id = self.core.add(request)
        except Rejection:
            total = len(request.prompt) + max_tokens
            assert total > self.executor.capacity.sequence_len_max
        else:
            self.ledger.accept(seq_id, Entry.of(request, self.executor.capacity))

    @precondition(lambda self: self.ledger.live)
    @rule(which=st.integers(0, 50), reason=st.sampled_from([FinishReason.ABORT]))
    def abort(self, which: int, reason: FinishReason) -> None:
        seq_id = self.ledger.live[which % len(self.ledger.live)]
        ending = self.core.abort(seq_id, reason)
        assert ending
        self.ledger.take_ending(ending)
        assert self.core.abort(seq_id, reason) is None

    @rule()
    def plan(self) -> None:
        frame = self.executor.plans[self.core.next_step % FRAMES]
        if planned := self.core.plan(frame):
            self.published.append(planned)
        else:
            assert self.published or not self.ledger.live, "idle beside work"

    @precondition(lambda self: self.published)
    @rule()
    def execute(self) -> None:
        """The executor computes a step; its result may be looked at much later."""
        if self.executor.completed < self.published[-1].step:
            self.past.append(self.executor.execute(self.executor.completed + 1))

    @precondition(lambda self: self.published)
    @rule()
    def commit(self) -> None:
        flight = self.published.popleft()
        if self.executor.completed < flight.step:
            self.past.append(self.executor.execute(flight.step))
        frame = self.executor.results[flight.step % FRAMES]
        result = frame.read(epoch=flight.epoch, step=flight.step, rows=flight.rows)
        self.ledger.take_output(self.core.commit(result))

    @precondition(lambda self: self.past)
    @rule(which=st.integers(0, 50))
    def commit_again(self, which: int) -> None:
        """What came before, or belongs to another epoch, changes nothing."""
        result = self.past[which % len(self.past)]
        awaited = [(flight.epoch, flight.step) for flight in self.published]
        if (result.epoch, result.step) not in awaited:
            before = self.core.stats()
            output = self.core.commit(result)
            assert not len(output.tokens)
            assert not output.endings
            assert self.core.stats() == before

    @rule(block_size=st.integers(1, 4))
    def lose(self, block_size: int) -> None:
        self.published.clear()
        assert self.core.executor_lost() == []
        old = self.executor.capacity
        num_blocks = -(-old.num_blocks * old.block_size // block_size)
        self._attach(
            Capacity(
                num_blocks=num_blocks,
                block_size=block_size,
                rows_max=old.rows_max,
                tokens_max=old.tokens_max,
                lanes=old.lanes,
                model_len_max=old.model_len_max,
                vocab_size=old.vocab_size,
            )
        )

    @rule(policy=POLICIES)
    def swap(self, policy: str) -> None:
        self.core.set_policy(BY_NAME[policy]())

    def _attach(self, capacity: Capacity) -> None:
        self.epoch += 1
        self.executor = SimExecutor(capacity)
        self.executor.begin(self.epoch, 0)
        assert self.core.attach(capacity, self.epoch) == []

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "core"):
            self.core.check()
            stats = self.core.stats()
            assert stats.waiting + stats.running == len(self.ledger.live)
            assert stats.in_flight == len(self.published)

    def teardown(self) -> None:
        """Left alone, everybody gets what was promised, and everything is given back."""
        if not hasattr(self, "core"):
            return
        for _ in range(3_000):
            if not (self.ledger.live or self.published):
                break
            self.plan()
            if self.published:
                self.commit()
        assert self.ledger.live == []
        stats = self.core.stats()
        assert stats.blocks_free == stats.blocks_total


def test_core_machine() -> None:
    run_state_machine_as_test(CoreMachine, settings=settings(stateful_step_count=40))
