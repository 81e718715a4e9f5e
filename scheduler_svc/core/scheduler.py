"""The scheduler: accepts requests, plans steps, commits results, accounts for every block.

This is the door; what is behind it has a file each:
    roster      who waits, who runs, and every change between
    order       what the policy in force says, and what it may not do
    planner     what goes into the next step
    settling    what a step's result changes
    coasting    many steps at once, for simulations
    batch       lanes, blocks and steps in flight of one epoch
"""

from collections.abc import Sequence

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.coasting import coast, steady_steps
from scheduler_svc.core.fit import misfit
from scheduler_svc.core.kv_index import KvIndex
from scheduler_svc.core.pace import Pace
from scheduler_svc.core.planner import Planner
from scheduler_svc.core.policies import Fcfs, LoadView, Policy
from scheduler_svc.core.question import Question
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.settling import settle, take_oldest
from scheduler_svc.core.tenants import TenantUsage
from scheduler_svc.core.types import (
    NOTHING,
    Ending,
    Int32s,
    Int64s,
    PlannedStep,
    Rejection,
    Request,
    SchedulerConfig,
    Stats,
    StepOutput,
)
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, StepResult
from svc_wire.ids import FinishReason, RejectReason, SeqId


class Scheduler:
    """Used by one thread. Events in, plans and endings out."""

    def __init__(
        self, config: SchedulerConfig, policy: Policy, question: Question | None = None
    ) -> None:
        """`question` is for who watches the policy: see there."""
        self.config = config
        self._roster = Roster(config, policy, question or Question())
        self._pace = Pace()
        self._planner: Planner | None = None
        """Of this epoch."""
        self._capacity: Capacity | None = None
        """Of the last executor, whether or not it lives."""
        self._steps = self._tokens = 0

    # -- the policy --------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._roster.order.policy

    @property
    def policy_name(self) -> str:
        """Its name, whatever it says of itself by now."""
        return self._roster.order.policy_name

    @property
    def policy_fault(self) -> str:
        """Why the last policy that was replaced was replaced; empty if none was."""
        return self._roster.order.last_fault

    @property
    def question(self) -> Question:
        """What the policy is being asked, for a watchdog and a budget."""
        return self._roster.order.question

    def set_policy(self, policy: Policy) -> None:
        """Puts another policy in force from the next plan on: everybody is ordered anew.

        Raises PolicyFault, and changes nothing, if it cannot order the requests there are.
        """
        self._roster.set_policy(policy)

    def distrust_policy(self, reason: str) -> None:
        """Replaces the policy by fcfs, for a reason that cannot be seen from in here."""
        self._roster.order.distrust(reason)
        self._replace_faulty_policy()

    def _replace_faulty_policy(self) -> None:
        if self._roster.order.take_fault():
            self.set_policy(Fcfs())

    # -- the executor comes and goes ---------------------------------------------------------------

    @property
    def epoch(self) -> int | None:
        """The epoch in which steps are planned; None: there is no executor."""
        batch = self._roster.batch
        return batch.epoch if batch else None

    @property
    def next_step(self) -> int:
        """The number of the step that `plan` would plan. There must be an executor."""
        assert self._roster.batch is not None
        return self._roster.batch.step + 1

    def attach(self, capacity: Capacity, epoch: int, kv: KvIndex | None = None) -> list[Ending]:
        """An executor is ready. Returns the endings of requests that can never fit this one.

        `kv` is what its KV memory holds, as the scheduler before this one has left it.
        """
        roster = self._roster
        assert roster.batch is None, "the former executor was not given up"
        self._capacity, self._pace = capacity, Pace()
        batch = Batch(epoch, capacity, self.config)
        if kv is not None and self.config.prefix_cache:
            batch.pool.adopt(kv)
        roster.set_batch(batch)
        self._planner = Planner(roster, batch, self._pace, self.config.itl_target_ms)
        endings = []
        for sequence in list(roster.sequences.values()):
            sequence.block_keys = []  # the block size may have changed
            if found := misfit(sequence.request, capacity):
                endings.append(roster.end(sequence, FinishReason.ERROR, found[1]))
        return endings

    def executor_lost(self) -> list[Ending]:
        """The epoch is over: running sequences wait again with their known tokens.

        Returns the ending of a request that is found to be the cause; see `suspects`.
        """
        roster, batch = self._roster, self._roster.batch
        if batch is None:
            return []
        causes = roster.blame(batch.seq_ids_in_flight())
        self._end_epoch(batch)
        message = "the executor fails whenever it computes this request"
        return [roster.end(cause, FinishReason.ERROR, message) for cause in causes]

    def hand_over(self) -> KvIndex:
        """Ends the epoch as ordered, with no step in flight: everybody waits again.

        Returns what the executor's KV memory holds, for another scheduler to attach with.
        """
        batch = self._roster.batch
        assert batch is not None
        assert not batch.in_flight, "blocks of steps in flight are not written yet"
        moment = batch.table.moment(batch.lanes)
        batch.tidy()
        batch.register(batch.lanes, moment, moment.planned)
        self._end_epoch(batch)
        return batch.pool.index()

    def _end_epoch(self, batch: Batch) -> None:
        for sequence in list(batch.running):
            self._roster.put_back(batch, sequence)
        self._planner = None
        self._roster.set_batch(None)

    # -- requests come and go ----------------------------------------------------------------------

    def add(self, request: Request, now_s: float = 0.0) -> SeqId:
        """Accepts a request, or raises Rejection. From here on it ends exactly once.

        `now_s` is the time on any clock that does not go back; only policies look at it.
        """
        if self._capacity is None:
            raise Rejection(RejectReason.NO_EXECUTOR, "no executor has been ready yet")
        if found := misfit(request, self._capacity):
            raise Rejection(*found)
        waiting = self._roster.waiting_count
        if waiting >= self.config.waiting_max and not request.was_accepted:
            raise Rejection(RejectReason.QUEUE_FULL, f"{waiting} requests are waiting")
        seq_id = self._roster.add(request, self._load(now_s))
        self._replace_faulty_policy()
        return seq_id

    def _load(self, now_s: float) -> LoadView:
        batch = self._roster.batch
        return LoadView(
            now_s=now_s,
            waiting=len(self._roster.order.waiting),
            running=len(self._roster.running),
            running_max=batch.running_max if batch else self.config.running_max,
            step_s=self._pace.step_s,
            prompt_token_s=self._pace.prompt_token_s,
        )

    def abort(self, seq_id: SeqId, reason: FinishReason) -> Ending | None:
        """Ends a sequence at once; None if it has ended before."""
        sequence = self._roster.sequences.get(seq_id)
        return self._roster.end(sequence, reason) if sequence else None

    def continuation(self, seq_id: SeqId, begun: Int32s) -> Int32s | None:
        """The known tokens after `begun`, prompt first; None if it did not begin so, or has ended.

        Both are [N]; the result is a copy.
        """
        sequence = self._roster.sequences.get(seq_id)
        if sequence is None:
            return None
        tokens = self._roster.known_tokens(sequence)
        return tokens[len(begun) :].copy() if _begins_with(tokens, begun) else None

    # -- steps -------------------------------------------------------------------------------------

    def plan(self, frame: PlanFrame | None) -> PlannedStep | None:
        """Plans the next step into `frame` and seals it; a simulation may need no frame.

        None if there is nothing to do or enough steps are in flight. A planned step must be
        published; its result must be committed, in order, or the executor given up.
        """
        batch = self._roster.batch
        if batch is None or len(batch.in_flight) > self.config.depth:
            return None
        assert self._planner is not None
        self._replace_faulty_policy()
        return self._planner.plan(frame)

    def commit(self, result: StepResult) -> StepOutput:
        """Takes in the result of the oldest step in flight.

        Results of other epochs, and of steps that were committed before, are ignored. Raises
        ProtocolViolation for a result that cannot be true; then the executor must be given up.
        """
        batch = self._roster.batch
        flight = take_oldest(batch, result) if batch else None
        if batch is None or flight is None:
            return NOTHING
        self._steps += 1
        self._pace.observe(result.timing, len(flight.stop), flight.tokens)
        output = settle(self._roster, batch, flight, result)
        self._tokens += len(output.tokens)
        return output

    def tidy(self) -> None:
        """Does what can wait until a plan is published; what is not done then, comes with the next.

        Plans are the same whether or not it is called.
        """
        if batch := self._roster.batch:
            batch.tidy()

    # -- in simulations ----------------------------------------------------------------------------

    def steady_steps(self) -> int:
        """How many steps to come are known to do nothing but decode, if nobody comes or goes."""
        batch = self._roster.batch
        return steady_steps(self._roster, batch, self.config.depth) if batch else 0

    def coast(self, took: Sequence[tuple[float, int]], token: int) -> Int64s:
        """Commits as many steady steps as there are entries in `took`, and plans as many.

        An entry is the time of a step and its input tokens, the oldest in flight first. Every row
        gets `token`, always. Returns whose rows they are.
        """
        batch = self._roster.batch
        assert batch is not None
        rows = len(batch.running)
        coast(batch, len(took), token)
        for took_s, tokens in took:
            self._pace.observe_s(took_s, rows, tokens)
        self._steps += len(took)
        self._tokens += len(took) * rows
        return batch.rows.seq_id

    # -- looking in --------------------------------------------------------------------------------

    def stats(self) -> Stats:
        roster, batch = self._roster, self._roster.batch
        return Stats(
            waiting=roster.waiting_count,
            running=len(roster.running),
            in_flight=len(batch.in_flight) if batch else 0,
            blocks_total=batch.pool.num_blocks if batch else 0,
            blocks_free=batch.pool.available if batch else 0,
            steps=self._steps,
            tokens=self._tokens,
            preemptions=roster.preemptions,
            swaps_out=roster.swaps_out,
            swaps_in=roster.swaps_in,
            recomputed_tokens=roster.recomputed_tokens,
            cache_hit_tokens=roster.cache_hit_tokens,
            policy_faults=roster.order.faults,
            reliefs=roster.order.reliefs,
        )

    def tenants(self) -> dict[str, TenantUsage]:
        """What each tenant asked for and got."""
        return self._roster.tenants.all()

    def check(self) -> None:
        """Asserts every invariant; for tests, the simulation, and production when idle."""
        self._roster.check(self.config.depth)


def _begins_with(tokens: Int32s, begun: Int32s) -> bool:
    return len(tokens) >= len(begun) and bool((tokens[: len(begun)] == begun).all())
