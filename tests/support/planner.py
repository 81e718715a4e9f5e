"""A planner for tests of runners: small, plain, and careless on purpose about being good.

It drives a runner the way a scheduler does (chunked prefill, mixed steps, carry-over with steps in
flight, preemption by recompute), but shares no code with one. Every choice comes from one seed.
"""

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from executor_svc.runner import Runner
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, StepResult
from svc_wire.frontend_link import Sampling
from svc_wire.ids import CARRIED_TOKEN, STOP_IDS_MAX, RowFlag, RowStatus
from svc_wire.layout import plan_dtype

FRAMES = 4


@dataclass(slots=True)
class Job:
    """One request, and when it arrives."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    arrives_at_step: int = 0
    logprobs: int | None = None
    """As in a Request: so many alternatives to each token."""


@dataclass(slots=True, eq=False)
class _Sequence:
    job: Job
    output: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, list[tuple[int, float]]]] = field(default_factory=list)
    """Of each output token, and of its alternatives."""
    blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    """Where its KV is while it is swapped out: of positions [0:planned)."""
    lane: int = -1
    planned: int = 0
    pending: int = 0
    generation: int = 0
    ended: bool = False
    failed: bool = False

    @property
    def known(self) -> list[int]:
        return self.job.prompt + self.output

    @property
    def length(self) -> int:
        return len(self.job.prompt) + len(self.output) + self.pending

    @property
    def is_planned_out(self) -> bool:
        return self.ended or len(self.output) + self.pending >= self.job.max_tokens


@dataclass(frozen=True, slots=True)
class _Row:
    sequence: _Sequence
    generation: int
    start: int
    stop: int
    flags: RowFlag


class Planner:
    """Runs jobs on a runner to their ends; `outputs` has what each produced."""

    def __init__(
        self,
        runner: Runner,
        jobs: list[Job],
        *,
        seed: int = 0,
        depth: int = 1,
        chunk_max: int = 8,
        preempt_chance: float = 0.0,
        swap_chance: float = 0.0,
        epoch: int = 1,
    ) -> None:
        self.runner = runner
        self._epoch = epoch
        self.capacity: Capacity = runner.capacity
        self.sequences = [_Sequence(job) for job in jobs]
        self.preemptions = 0
        self.swaps = 0
        self.masked_rows = 0
        self.epochs = 1
        self._depth, self._chunk_max, self._preempt_chance = depth, chunk_max, preempt_chance
        self._swap_chance = swap_chance
        self._random = random.Random(seed)
        self._free_blocks = list(range(self.capacity.num_blocks))
        self._free_host_blocks = list(range(self.capacity.host_blocks))
        self._copies_out = list[tuple[int, int]]()
        self._copies_in = list[tuple[int, int]]()
        self._free_lanes = list(range(self.capacity.lanes))
        self._random.shuffle(self._free_blocks)
        bytes_ = plan_dtype(self.capacity).itemsize
        self._frames = [
            PlanFrame(bytearray(bytes_), self.capacity, writable=True) for _ in range(FRAMES)
        ]
        self._step = 0
        self._now = 0
        self._in_flight: deque[tuple[int, list[_Row]]] = deque()

    def run(self, hand_over_every: int = 0) -> list[list[int]]:
        """The output tokens of each job, in order; with a new epoch after every so many steps."""
        self.begin()
        while not all(sequence.ended for sequence in self.sequences):
            while len(self._in_flight) <= self._depth and self.publish_next():
                pass
            if self._in_flight:
                self._commit()
                if hand_over_every and self._step % hand_over_every == 0:
                    self.hand_over()
            else:
                self._now += 1  # nothing has arrived yet
        while self._in_flight:
            self._commit()
        return [sequence.output for sequence in self.sequences]

    def begin(self) -> None:
        self.runner.begin(self._epoch)

    def hand_over(self) -> None:
        """A new epoch when all steps have ended: lanes are forgotten, blocks are not."""
        while self._in_flight:
            self._commit()
        self._epoch += 1
        self.epochs += 1
        self.begin()

    def publish_next(self) -> bool:
        """Plans and submits one step; False if there is nothing to do now."""
        if rows := self._choose():
            self._publish(rows)
        return bool(rows)

    @staticmethod
    def _logprobs(
        result: StepResult, row: int, alternatives: int
    ) -> tuple[float, list[tuple[int, float]]]:
        found = result.logprobs
        assert found is not None, "a row asked"
        top = zip(found.top_ids[row].tolist(), found.top[row].tolist(), strict=True)
        return float(found.chosen[row]), list(top)[:alternatives]

    def _choose(self) -> list[_Row]:
        self._maybe_preempt()
        budget, rows = self.capacity.tokens_max, list[_Row]()
        for sequence in self.sequences:
            if sequence.job.arrives_at_step > self._now or sequence.is_planned_out:
                continue
            if len(rows) == self.capacity.rows_max or budget == 0:
                break
            count = min(sequence.length - sequence.planned, self._chunk_max, budget)
            if count and self._admit(sequence, sequence.planned + count):
                rows.append(self._row(sequence, sequence.planned + count))
                budget -= count
        return rows

    def _row(self, sequence: _Sequence, stop: int) -> _Row:
        flags = RowFlag.PENALISED if sequence.job.sampling.has_penalties else RowFlag(0)
        if stop > len(sequence.known):
            flags |= RowFlag.CARRY
        start, sequence.planned = sequence.planned, stop
        if stop == sequence.length:
            flags |= RowFlag.SAMPLES
            if len(sequence.output) + sequence.pending < sequence.job.min_tokens:
                flags |= RowFlag.BAN_STOP
            sequence.pending += 1
        return _Row(sequence, sequence.generation, start, stop, flags)

    def _admit(self, sequence: _Sequence, stop: int) -> bool:
        """Finds blocks (and a lane) for [0:stop); others are preempted for an older sequence."""
        needed = -(-stop // self.capacity.block_size) - len(sequence.blocks)
        running = [s for s in self.sequences if s.lane >= 0 and s is not sequence]
        while len(self._free_blocks) < needed:
            youngest = running.pop() if running else None
            if youngest is None or self.sequences.index(youngest) < self.sequences.index(sequence):
                return False
            self._preempt(youngest)
        if sequence.lane < 0:
            if not self._free_lanes:
                return False
            sequence.lane = self._free_lanes.pop(0)
        sequence.blocks += [self._free_blocks.pop() for _ in range(needed)]
        self._copies_in += zip(sequence.blocks, sequence.host_blocks, strict=False)
        sequence.host_blocks = []
        return True

    def _maybe_preempt(self) -> None:
        running = [s for s in self.sequences if s.lane >= 0 and not s.ended]
        if running and self._random.random() < self._preempt_chance:
            self._preempt(self._random.choice(running))

    def _preempt(self, sequence: _Sequence) -> None:
        self.preemptions += 1
        kept = self._swap_out(sequence) if self._random.random() < self._swap_chance else 0
        self._release(sequence)
        sequence.planned, sequence.pending = kept, 0
        sequence.generation += 1

    def _swap_out(self, sequence: _Sequence) -> int:
        """Has as much copied out as there is room for; how many tokens are kept."""
        if sequence.job.sampling.has_penalties:
            return 0
        size = self.capacity.block_size
        tokens = min(sequence.planned, len(sequence.known) - 1, size * len(self._free_host_blocks))
        self._random.shuffle(self._free_host_blocks)
        sequence.host_blocks = [self._free_host_blocks.pop() for _ in range(-(-tokens // size))]
        self._copies_out += zip(sequence.blocks, sequence.host_blocks, strict=False)
        self.swaps += bool(tokens)
        return tokens

    def _release(self, sequence: _Sequence) -> None:
        """Blocks may be reused at once: steps run in order, and stopped rows write to scrap."""
        self._free_blocks += sequence.blocks
        self._random.shuffle(self._free_blocks)
        if sequence.lane >= 0:
            self._free_lanes.append(sequence.lane)
        sequence.blocks, sequence.lane = [], -1

    def _publish(self, rows: list[_Row]) -> None:
        self._step += 1
        self._now += 1
        frame = self._frames[self._step % FRAMES]
        copies = self._copies_out, self._copies_in
        fill_frame(frame, rows, self._epoch, self._step, copies)
        self._free_host_blocks += [host for _, host in self._copies_in]
        self._copies_out, self._copies_in = [], []
        self._in_flight.append((self._step, rows))
        self.runner.submit(frame.read(epoch=self._epoch, step=self._step), 0)

    def _commit(self) -> None:
        step, rows = self._in_flight.popleft()
        result = self.runner.wait(60.0)
        assert result is not None, "the runner is stuck"
        assert (result.epoch, result.step) == (self._epoch, step)
        for index, row in enumerate(rows):
            self._settle(row, result, index)

    def _settle(self, row: _Row, result: StepResult, index: int) -> None:
        sequence = row.sequence
        status, token = RowStatus(result.row_status[index]), int(result.row_token[index])
        assert (token >= 0) == (
            RowFlag.SAMPLES in row.flags and status in (RowStatus.OK, RowStatus.STOPPED)
        )
        self.masked_rows += status == RowStatus.MASKED
        if row.generation != sequence.generation:
            return
        if sequence.ended:
            assert status == RowStatus.MASKED
            return
        assert status != RowStatus.MASKED
        if RowFlag.SAMPLES not in row.flags:
            return
        sequence.pending -= 1
        sequence.failed = status == RowStatus.ERROR
        if not sequence.failed:
            sequence.output.append(token)
            if sequence.job.logprobs is not None:
                sequence.logprobs.append(self._logprobs(result, index, sequence.job.logprobs))
        full = len(sequence.output) == sequence.job.max_tokens
        if status != RowStatus.OK or full:
            sequence.ended = True
            self._release(sequence)


_Pairs = list[tuple[int, int]]


def fill_frame(
    frame: PlanFrame,
    rows: list[_Row],
    epoch: int,
    step: int,
    copies: tuple[_Pairs, _Pairs] = ([], []),
) -> None:
    """Writes rows and block copies (out, in) into the frame and seals it."""
    block_size = frame.capacity.block_size
    tokens = blocks = samples = 0
    frame.query_indptr[0] = frame.block_indptr[0] = 0
    for r, row in enumerate(rows):
        sequence, sampling = row.sequence, row.sequence.job.sampling
        count = row.stop - row.start
        table = np.array(sequence.blocks[: -(-row.stop // block_size)], np.int32)
        ids = [*sequence.known, CARRIED_TOKEN][row.start : row.stop]
        if RowFlag.CARRY in row.flags:
            ids = [*sequence.known[row.start : row.stop - 1], CARRIED_TOKEN]
        position = np.arange(row.start, row.stop)
        here = slice(tokens, tokens + count)
        frame.token_ids[here], frame.positions[here] = ids, position
        frame.kv_slots[here] = table[position // block_size] * block_size + position % block_size
        frame.block_ids[blocks : blocks + len(table)] = table
        tokens, blocks = tokens + count, blocks + len(table)
        frame.query_indptr[r + 1], frame.block_indptr[r + 1] = tokens, blocks
        frame.row_lane[r], frame.row_flags[r] = sequence.lane, row.flags
        frame.row_start[r], frame.row_stop[r] = row.start, row.stop
        frame.temperature[r], frame.top_k[r] = sampling.temperature, sampling.top_k
        frame.top_p[r], frame.min_p[r] = sampling.top_p, sampling.min_p
        frame.repetition_penalty[r] = sampling.repetition_penalty
        frame.presence_penalty[r] = sampling.presence_penalty
        frame.frequency_penalty[r] = sampling.frequency_penalty
        asked = sequence.job.logprobs
        frame.logprobs[r] = 0 if asked is None else 1 + asked
        frame.prompt_len[r] = len(sequence.job.prompt)
        frame.seed[r] = sampling.seed
        stop_ids = sequence.job.stop_ids
        frame.stop_ids[r] = (*stop_ids, *([-1] * (STOP_IDS_MAX - len(stop_ids))))
        samples += RowFlag.SAMPLES in row.flags
    out, into = (np.array(pairs, np.int32).reshape(-1, 2) for pairs in copies)
    frame.write_copies(blocks, out, into)
    frame.seal(
        epoch=epoch, step=step, rows=len(rows), tokens=tokens, blocks=blocks, samples=samples,
        copies_out=len(out), copies_in=len(into),
    )  # fmt: skip
