"""A world in one process: scheduler core, wire, executor, clients, trouble. No threads, no clock.

Time is a number; a heap holds what happens when, and `now` jumps from one event to the next. One
random generator decides everything, so that a seed is a world and its trace is always the same.
"""

import random
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count

from scheduler_svc.core import KvIndex, PlannedStep, Rejection, Request, Scheduler, StepOutput
from svc_wire.errors import FrameError
from svc_wire.frames import Int32s, PlanFrame, StepResult
from svc_wire.ids import RejectReason
from svc_wire.ring import FRAMES
from tests.sim import promises, trouble
from tests.sim.executor import SimExecutor
from tests.sim.knobs import LOSSES, Fault, Knobs, draw_knobs, draw_storm
from tests.sim.ledger import Entry, Ledger
from tests.sim.workload import draw_requests

Event = Callable[[], object]

STALL_TICKS = 100
GHOSTS_MAX = 30
STEPS_MAX = 3_000


class World:
    """One seed's world. `run` returns when everything has ended, or raises AssertionError."""

    def __init__(
        self,
        seed: int | str,
        *,
        storm: bool = False,
        log: Callable[[str], object] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.knobs: Knobs = draw_storm(self.rng) if storm else draw_knobs(self.rng)
        self.policy = trouble.draw_policy(self)
        self.core = self.new_core()
        self.ledger = Ledger()
        self.capacity = self.knobs.capacity
        self.executor = SimExecutor(self.capacity)
        self.now = 0
        self.steps = 0
        self.losses = self.swaps = self.kills = 0
        self.is_leaving = False
        """The scheduler plans no more, and goes when its steps have ended."""
        self.poison: Entry | None = None
        """The request at which the executor breaks."""
        self.orphans: list[Entry] = []
        """Live requests of a scheduler that is gone, until there is an executor again."""
        self.published: list[PlannedStep] = []
        """Planned and not committed, oldest first."""
        self.ghosts: list[StepResult] = []
        """Results that may come once more."""
        self._epoch = 0
        self._events: list[tuple[int, int, Event, bool]] = []
        self._serial = count()
        self._log = log

    def run(self) -> None:
        self.attach(self.executor)
        for request in draw_requests(self.rng, self.capacity, self.knobs.requests):
            self.at(self.rng.randrange(self.knobs.trouble_ticks), partial(self._add, request))
        trouble.schedule(self)
        while self._events:
            self.now, _, event, concerns_scheduler = heappop(self._events)
            event()
            if concerns_scheduler:
                self._turn()
        self._check_end()

    def new_core(self) -> Scheduler:
        return Scheduler(self.knobs.config, self.policy)

    # -- time and chance ---------------------------------------------------------------------------

    def at(self, delay: int, event: Event, *, concerns_scheduler: bool = True) -> None:
        when = self.now + delay
        heappush(self._events, (when, next(self._serial), event, concerns_scheduler))

    def happens(self, fault: Fault, chance: float) -> bool:
        """Whether this kind of trouble strikes here and now; later on the world heals."""
        is_on = fault in self.knobs.faults and self.now <= self.knobs.trouble_ticks
        return is_on and self.rng.random() < chance * self.knobs.chance

    def say(self, text: str) -> None:
        if self._log:
            self._log(f"{self.now:>5} {text}")

    # -- clients -----------------------------------------------------------------------------------

    def _add(self, request: Request) -> None:
        waiting = self.core.stats().waiting
        is_full = waiting >= self.knobs.config.waiting_max
        fits = len(request.prompt) + request.max_tokens <= self.capacity.sequence_len_max
        seq_id, reason = None, None
        try:
            seq_id = self.core.add(request, now_s=self.now)
        except Rejection as rejection:
            reason = rejection.reason
        if seq_id:
            assert fits, "accepted, but can never fit"
            assert not is_full, "accepted beyond the bound"
            self.ledger.accept(seq_id, Entry.of(request, self.capacity))
            self.say(f"add seq {seq_id}: {_describe_request(request)}")
            return
        assert reason
        self.say(f"reject {reason.name}: {_describe_request(request)}")
        if reason is RejectReason.NO_EXECUTOR:
            assert self.core.epoch is None, "refused beside an executor"
        elif reason is RejectReason.POLICY:
            assert self.policy.name in ("crazy", "deadline"), "refused by a policy that never does"
        else:
            assert reason is (RejectReason.QUEUE_FULL if fits else RejectReason.TOO_LONG)
            assert is_full or not fits, "refused, but could be served"

    def _deliver(self, output: StepOutput) -> None:
        self.ledger.take_output(output)
        for ending in output.endings:
            self.say(f"end seq {ending.seq_id}: {ending.reason.name}")

    # -- the scheduler's shell ---------------------------------------------------------------------

    def _turn(self) -> None:
        """What the scheduler does after whatever has happened to it."""
        if self.is_leaving and not self.published:
            trouble.leave(self)
        if self.happens(Fault.LAZY_PLANS, 0.5):
            self.at(self.rng.randint(1, 9), lambda: None)  # its next turn
        else:
            self._plan()
        self._check()

    def _plan(self) -> None:
        while self.core.epoch is not None and not self.is_leaving:
            frame = self.executor.plans[self.core.next_step % FRAMES]
            in_order = self._is_in_order()
            before = promises.look(self.core, in_order=in_order)
            planned = self.core.plan(frame)
            if planned is None:
                promises.check_nothing(before)
                return
            promises.check_plan(self.core, before, planned, frame, in_order=in_order)
            self.published.append(planned)
            self.steps += 1
            if self._log:
                self.say(_describe_step(planned, frame, self.core.stats().blocks_free))
            self._publish(planned, frame)

    def _is_in_order(self) -> bool:
        """Nothing has happened after which other rules go before the policy's."""
        order = self.core._roster.order
        return not (self.losses or self.swaps or order.reliefs or order.faults)

    def _publish(self, planned: PlannedStep, frame: PlanFrame) -> None:
        executor = self.executor
        is_poisoned = self._is_poisoned(frame.row_lane[: planned.rows])
        if self.happens(Fault.TORN_PLAN, 0.1):
            executor.tear_plan(planned.step, self.rng.randrange(64))
        ticks = self.rng.randint(1, 4) * (8 if self.happens(Fault.SLOW_STEPS, 0.3) else 1)
        executor.free_at = max(executor.free_at, self.now) + ticks
        self.at(
            executor.free_at - self.now,
            partial(self._execute, executor, planned, ticks, is_poisoned),
            concerns_scheduler=False,
        )

    def _is_poisoned(self, lanes: Int32s) -> bool:
        batch = self.core._roster.batch
        assert batch is not None
        seq_ids = batch.table.seq_id[lanes].tolist()
        return any(self.ledger.entries[seq_id] is self.poison for seq_id in seq_ids)

    def _look(self) -> None:
        """Commits what is complete, as the shell does; plans anew after each commit."""
        executor = self.executor
        while self.published and executor.completed >= self.published[0].step:
            flight = self.published.pop(0)
            frame = executor.results[flight.step % FRAMES]
            try:
                result = frame.read(epoch=flight.epoch, step=flight.step, rows=flight.rows)
            except FrameError as error:
                self.lose(f"torn result: {type(error).__name__}")
                self.reattach_later(executor)
                return
            self._deliver(self.core.commit(result))
            if not self.happens(Fault.LAZY_PLANS, 1.0):
                self._plan()

    def lose(self, why: str) -> None:
        """The epoch is over."""
        self.say(f"lost the executor: {why}")
        self.losses += 1
        self.published.clear()
        for ending in self.core.executor_lost():
            self.say(f"end seq {ending.seq_id}: {ending.message}")
            is_poison = self.ledger.entries[ending.seq_id] is self.poison
            assert is_poison or self.knobs.faults & LOSSES, "blamed for what another request did"
            self.ledger.take_ending(ending)
        assert self.core.executor_lost() == []

    def reattach_later(self, executor: SimExecutor) -> None:
        self.at(self.rng.randint(0, 20), partial(self.attach, executor))

    def attach(self, executor: SimExecutor, kv: KvIndex | None = None) -> None:
        """A new epoch with `executor`, unless there is one with another by now.

        `kv` is what is in its memory, if somebody knows.
        """
        if self.core.epoch is not None or executor.is_dead:
            return
        self._epoch += 1
        self.executor, self.capacity = executor, executor.capacity
        executor.begin(self._epoch, self.now)
        self.say(f"attach epoch {self._epoch}")
        for ending in self.core.attach(self.capacity, self._epoch, kv):
            request = self.ledger.entries[ending.seq_id].request
            assert len(request.prompt) + request.max_tokens > self.capacity.sequence_len_max
            self.ledger.take_ending(ending)
        orphans, self.orphans = self.orphans, []
        for entry in orphans:
            self._resume(entry)

    def _resume(self, entry: Entry) -> None:
        """A front end hands a live request to this scheduler, even if more come than may wait."""
        request = entry.resumed()
        fits = len(request.prompt) + request.max_tokens <= self.capacity.sequence_len_max
        seq_id, reason = None, None
        try:
            seq_id = self.core.add(request, now_s=self.now)
        except Rejection as rejection:
            reason = rejection.reason
        assert fits is (seq_id is not None), f"turned away with {reason}, but was accepted before"
        if seq_id is None:
            assert reason is RejectReason.TOO_LONG
            return
        self.say(f"resume seq {seq_id} at {len(entry.tokens)}")
        self.ledger.accept(seq_id, entry)

    # -- the executor ------------------------------------------------------------------------------

    def _execute(
        self, executor: SimExecutor, planned: PlannedStep, ticks: int, is_poisoned: bool
    ) -> None:
        """Reads the frame as it is now, which is not when it was planned."""
        if executor.is_dead or executor.epoch != planned.epoch:
            return
        if is_poisoned:
            self._fail(executor, planned.epoch, "poisoned")
            return
        broken_row = self.rng.randrange(8) if self.happens(Fault.ROW_ERROR, 0.05) else None
        try:
            result = executor.execute(planned.step, took_ms=ticks, broken_row=broken_row)
        except FrameError as error:
            if Fault.TORN_PLAN not in self.knobs.faults:
                raise
            self._fail(executor, planned.epoch, f"torn plan: {type(error).__name__}")
            return
        if len(self.ghosts) < GHOSTS_MAX:
            self.ghosts.append(result)
        if self.happens(Fault.STALL, 0.15):
            executor.completed = 0  # nobody is told of this one
            self._fail(executor, planned.epoch, "stalled", after_ticks=STALL_TICKS)
            return
        if self.happens(Fault.TORN_RESULT, 0.1):
            executor.tear_result(planned.step, self.rng.randrange(10_000))
        self.at(self.rng.randint(10, 40) if self.happens(Fault.LATE_LOOKS, 0.4) else 0, self._look)

    def _fail(self, executor: SimExecutor, epoch: int, why: str, after_ticks: int = 1) -> None:
        """The executor drops its epoch; the scheduler learns of it later."""
        executor.epoch = 0
        self.at(after_ticks, partial(self._on_failed, executor, epoch, why))

    def _on_failed(self, executor: SimExecutor, epoch: int, why: str) -> None:
        if self.core.epoch == epoch and not executor.is_dead:
            self.lose(why)
            self.reattach_later(executor)

    # -- what must hold ----------------------------------------------------------------------------

    def _check(self) -> None:
        self.core.check()
        stats = self.core.stats()
        assert stats.in_flight == len(self.published), "steps in flight are miscounted"
        assert stats.waiting + stats.running == len(self.ledger.live), "somebody is lost"
        assert self.steps < STEPS_MAX, "no end in sight"

    def _check_end(self) -> None:
        """Everybody got what was promised, and everything is given back."""
        assert self.core.epoch is not None
        assert self.ledger.live == [], "the world came to rest beside live requests"
        assert self.orphans == [], "nobody took them over"
        stats = self.core.stats()
        assert (stats.waiting, stats.running, stats.in_flight) == (0, 0, 0)
        assert stats.blocks_free == stats.blocks_total, "blocks were not given back"
        batch = self.core._roster.batch
        assert batch is not None
        assert batch.swap.free == self.capacity.host_blocks, "host blocks were not given back"


def _describe_request(request: Request) -> str:
    return (
        f"prompt {len(request.prompt)} max {request.max_tokens} min {request.min_tokens} "
        f"stop ids {len(request.stop_ids)} priority {request.priority}"
    )


def _describe_step(planned: PlannedStep, frame: PlanFrame, blocks_free: int) -> str:
    rows = slice(planned.rows)
    spans = zip(
        frame.row_lane[rows].tolist(),
        frame.row_start[rows].tolist(),
        frame.row_stop[rows].tolist(),
        strict=True,
    )
    text = " ".join(f"{lane}[{start}:{stop})" for lane, start, stop in spans)
    header = frame.sections["header"]
    for word, copies in (("out", header["copies_out"]), ("in", header["copies_in"])):
        text += f" {copies} copied {word}" if copies else ""
    return f"step {planned.epoch}.{planned.step} free {blocks_free} rows {text}"
