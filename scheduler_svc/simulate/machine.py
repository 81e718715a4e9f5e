"""One policy, one workload: the real core drives a modelled executor on a clock that jumps.

The core plans steps and commits results, at the depth that it is configured for. Tokens mean
nothing here, so nobody reads a plan, and the result of a step says only that every row that samples
got one. Requests end by length: what a trace says was generated is what a request asks for.

While all that can happen is decoding, steps are taken many at once; what comes out is the same, bit
by bit (tests/property/test_coasting.py).
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from scheduler_svc.core import Policy, Rejection, Request, Scheduler, SchedulerConfig
from scheduler_svc.core.types import Ending, StepOutput
from scheduler_svc.simulate.cost import CostModel
from scheduler_svc.simulate.workload import Arrival
from svc_wire.capacity import Capacity
from svc_wire.frames import StepResult, StepTiming
from svc_wire.ids import FinishReason, RowStatus, SeqId

NAMES = 1 << 20
"""Token ids below it stand for named parts of prompts, those above for requests."""
EPOCH = 1
TOKEN = 0
"""What is always sampled."""

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Life:
    """What became of one request; times in seconds, NaN where it did not get so far."""

    arrival: Arrival
    deadline_s: float = math.inf
    refused: bool = False
    first_token_s: float = math.nan
    end_s: float = math.nan
    output_tokens: int = 0
    preemptions: int = 0
    cached_tokens: int = 0

    @property
    def is_whole(self) -> bool:
        return self.output_tokens == self.arrival.output_tokens

    @property
    def is_missed(self) -> bool:
        """It has a deadline, and its answer was not whole in time."""
        return math.isfinite(self.deadline_s) and not (
            self.is_whole and self.end_s <= self.deadline_s
        )


@dataclass(slots=True)
class Outcome:
    """What a policy made of a workload."""

    policy: str
    lives: list[Life]
    gaps_s: Float64s = field(default_factory=lambda: np.empty(0))
    """Time from a token to the next one of its request, of all requests."""
    end_s: float = 0.0
    steps: int = 0
    preemptions: int = 0
    copies_out: int = 0
    """KV blocks that were copied to host memory."""
    copies_in: int = 0
    copying_s: float = 0.0
    recomputed_tokens: int = 0
    """Input tokens that were computed before, and are again for lack of their KV."""
    recomputing_s: float = 0.0
    """Their arithmetic: what they add to steps that read prompts besides."""
    reliefs: int = 0
    policy_fault: str = ""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that the executor computes or will."""

    step: int
    rows: int
    tokens: int
    context_tokens: int
    begin_s: float
    """When its copies are done: they do not count as computing."""
    end_s: float

    @property
    def timing(self) -> StepTiming:
        return StepTiming(
            compute_begin_ns=round(self.begin_s * 1e9), compute_end_ns=round(self.end_s * 1e9)
        )


class Machine:
    """Runs one workload to its end; `run` may be called once."""

    def __init__(
        self,
        policy: Policy,
        cost: CostModel,
        config: SchedulerConfig,
        *,
        swap_bytes: int = 0,
        coasts: bool = True,
    ) -> None:
        """`swap_bytes`: host memory for KV. `coasts`: whether to take steady steps many at once."""
        self._cost = cost
        self._coasts = coasts
        self._core = Scheduler(config, policy)
        self._name = policy.name
        capacity = Capacity(
            num_blocks=cost.num_blocks,
            block_size=cost.block_size,
            rows_max=config.running_max,
            tokens_max=max(config.step_tokens_max, config.running_max),
            lanes=config.running_max,
            model_len_max=cost.model_len_max,
            vocab_size=2 * NAMES,
            host_blocks=swap_bytes // cost.block_bytes,
            block_copy_ns=round(cost.block_copy_s * 1e9),
        )
        self._core.attach(capacity, EPOCH)
        self._status = np.full(config.running_max, RowStatus.OK, np.uint8)
        self._tokens = np.full(config.running_max, TOKEN, np.int32)
        self._now_s = 0.0
        self._free_at_s = 0.0
        self._copies_out = self._copies_in = 0
        self._in_flight: deque[_Flight] = deque()
        self._lives: dict[SeqId, Life] = {}
        self._deadlines: list[tuple[float, SeqId]] = []
        self._first_token_s = self._last_token_s = np.empty(0)
        """By the number of the sequence; NaN: it has none."""
        self._gaps_s: list[Float64s] = []

    def run(self, arrivals: Sequence[Arrival], deadline_s: float = math.inf) -> Outcome:
        """All requests to their ends; each gives up `deadline_s` after it came."""
        lives = [Life(arrival, arrival.at_s + deadline_s) for arrival in arrivals]
        self._first_token_s = np.full(len(lives) + 1, math.nan)
        self._last_token_s = np.full(len(lives) + 1, math.nan)
        waiting = deque(lives)
        while waiting or self._lives:
            self._plan()
            until_s = min(
                waiting[0].arrival.at_s if waiting else math.inf,
                self._deadlines[0][0] if self._deadlines else math.inf,
            )
            if self._coasts:
                self._coast(until_s)
            self._now_s = min(until_s, self._in_flight[0].end_s if self._in_flight else math.inf)
            assert math.isfinite(self._now_s), "nothing to do, but requests are left"
            while self._in_flight and self._in_flight[0].end_s <= self._now_s:
                self._deliver(self._core.commit(self._result(self._in_flight.popleft())))
                self._plan()
            while waiting and waiting[0].arrival.at_s <= self._now_s:
                self._add(len(lives) - len(waiting), waiting.popleft())
            while self._deadlines and self._deadlines[0][0] <= self._now_s:
                self._give_up(heappop(self._deadlines)[1])
        return self._outcome(lives)

    def _add(self, number: int, life: Life) -> None:
        arrival = life.arrival
        request = Request(
            prompt=prompt_of(arrival, number),
            max_tokens=arrival.output_tokens,
            tenant=arrival.tenant,
            deadline_s=life.deadline_s,
        )
        try:
            seq_id = self._core.add(request, self._now_s)
        except Rejection:
            life.refused = True
            return
        self._lives[seq_id] = life
        if math.isfinite(life.deadline_s):
            heappush(self._deadlines, (life.deadline_s, seq_id))

    def _give_up(self, seq_id: SeqId) -> None:
        if ending := self._core.abort(seq_id, FinishReason.DEADLINE):
            self._end(ending)

    def _plan(self) -> None:
        """Plans what the depth allows; the executor computes one step after the other."""
        while planned := self._core.plan(None):
            rows, context_tokens = planned.rows, int(np.add.reduce(planned.stop))
            self._copies_out += planned.copies_out
            self._copies_in += planned.copies_in
            copies = planned.copies_out + planned.copies_in
            begin_s = max(self._free_at_s, self._now_s) + copies * self._cost.block_copy_s
            took_s = self._cost.step_s(rows, planned.tokens - rows, context_tokens)
            self._free_at_s = begin_s + took_s
            self._in_flight.append(
                _Flight(
                    planned.step, rows, planned.tokens, context_tokens, begin_s, self._free_at_s
                )
            )

    def _result(self, flight: _Flight) -> StepResult:
        rows = flight.rows
        status, tokens = self._status[:rows], self._tokens[:rows]
        return StepResult(EPOCH, flight.step, status, tokens, flight.timing)

    def _coast(self, until_s: float) -> None:
        """Takes all steady steps that end by `until_s`, if that is more than what is in flight."""
        flights, depth = self._in_flight, len(self._in_flight)
        if not flights or flights[-1].end_s > until_s:
            return
        if (steady := self._core.steady_steps()) <= depth:
            return
        newest, rows = flights[-1], flights[-1].rows
        # Each of the steps to come begins when the one before it ends.
        contexts = newest.context_tokens + rows * np.arange(1, steady + 1)
        took_s = self._cost.step_s(rows, 0, contexts)
        ends_s = np.add.accumulate(np.concatenate([[newest.end_s], took_s]))
        begins_s = np.concatenate([[flight.begin_s for flight in flights], ends_s[:-1]])
        ends_s = np.concatenate([[flight.end_s for flight in flights], ends_s[1:]])
        count = int(np.searchsorted(ends_s[:steady], until_s, side="right"))
        tokens = [flight.tokens for flight in flights] + [rows] * (count - depth)
        self._take(tokens, begins_s[:count], ends_s[:count])
        self._in_flight = deque(
            _Flight(
                newest.step + 1 + index - depth,
                rows,
                rows,
                int(contexts[index - depth]),
                float(begins_s[index]),
                float(ends_s[index]),
            )
            for index in range(count, count + depth)
        )
        self._now_s, self._free_at_s = float(ends_s[count - 1]), self._in_flight[-1].end_s

    def _take(self, tokens: list[int], begins_s: Float64s, ends_s: Float64s) -> None:
        """Commits steady steps of so many input tokens each."""
        took_s = (np.rint(ends_s * 1e9) - np.rint(begins_s * 1e9)) / 1e9
        seq_ids = self._core.coast(list(zip(took_s.tolist(), tokens, strict=True)), TOKEN)
        self._see_tokens(seq_ids, float(ends_s[0]))
        self._gaps_s.append(np.repeat(np.diff(ends_s), len(seq_ids)))
        self._last_token_s[seq_ids] = ends_s[-1]

    def _deliver(self, output: StepOutput) -> None:
        self._see_tokens(output.seq_ids, self._now_s)
        for ending in output.endings:
            self._end(ending)

    def _see_tokens(self, seq_ids: Int64s, now_s: float) -> None:
        """Each of them has got a token."""
        gaps_s = now_s - self._last_token_s[seq_ids]
        is_first = np.isnan(gaps_s)
        if is_first.any():
            self._first_token_s[seq_ids[is_first]] = now_s
            gaps_s = gaps_s[~is_first]
        self._gaps_s.append(gaps_s)
        self._last_token_s[seq_ids] = now_s

    def _end(self, ending: Ending) -> None:
        life = self._lives.pop(ending.seq_id)
        life.first_token_s = float(self._first_token_s[ending.seq_id])
        life.end_s = self._now_s
        life.output_tokens = ending.output_tokens
        life.preemptions = ending.preemptions
        life.cached_tokens = ending.cached_tokens

    def _outcome(self, lives: list[Life]) -> Outcome:
        stats = self._core.stats()
        return Outcome(
            policy=self._name,
            lives=lives,
            gaps_s=np.concatenate(self._gaps_s) if self._gaps_s else np.empty(0),
            end_s=self._now_s,
            steps=stats.steps,
            preemptions=stats.preemptions,
            copies_out=self._copies_out,
            copies_in=self._copies_in,
            copying_s=(self._copies_out + self._copies_in) * self._cost.block_copy_s,
            recomputed_tokens=stats.recomputed_tokens,
            recomputing_s=stats.recomputed_tokens * self._cost.token_s,
            reliefs=stats.reliefs,
            policy_fault=self._core.policy_fault,
        )


def prompt_of(arrival: Arrival, number: int) -> npt.NDArray[np.int32]:
    """Token ids that are equal where the names of the prefix are, and else nobody's but its own."""
    prompt = np.full(arrival.prompt_tokens, NAMES + number % NAMES, np.int32)
    run = arrival.prefix_run
    for index, name in enumerate(arrival.prefix):
        prompt[index * run : (index + 1) * run] = name % NAMES
    return prompt
