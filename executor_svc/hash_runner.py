"""A runner without a model: token ids stand where KV would be, and everything is checked.

Each KV slot has a cell that holds the position and the token that were written there. A row reads
positions [0:stop) back through its blocks and insists that each cell carries its own position; the
sampled token is a hash of the tokens read (hash_model.py). A wrong block, a block reused too early,
a lost carry-over or parameters of another row change the output or raise. So does a history that
penalties need and that is not whole: it is kept a lane, and fed by nothing but input tokens.
numpy only, no torch.
"""

import time
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from executor_svc.hash_model import (
    UInt64s,
    finalise_all,
    logprobs,
    marks,
    salts,
    strengths,
    weight,
)
from executor_svc.runner import RunnerError
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.frames import BatchPlan, Int32s, Int64s, StepResult, StepTiming
from svc_wire.ids import NO_TOKEN, STOP_IDS_MAX, RowFlag, RowStatus
from svc_wire.record import Bytes

Bools = npt.NDArray[np.bool_]

CELL_BYTES = 8
"""Memory of a token in the place of KV."""


class HashRunner:
    """A Runner (see runner.py) that computes the hash model.

    It computes in `submit`; `step_ms` makes it behave like a device that takes so long for a step.
    """

    def __init__(
        self,
        capacity: Capacity,
        *,
        eos_ids: tuple[int, ...] = (),
        name: str = "hash",
        step_ms: float = 0.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if capacity.vocab_size <= STOP_IDS_MAX:
            raise ValueError(f"the hash model needs a vocabulary of more than {STOP_IDS_MAX}")
        self.capacity = capacity
        self.model = ModelInfo(name=name, path="", eos_ids=eos_ids, dtype="hash", device="cpu")
        self._step_ns = int(step_ms * 1e6)
        self._clock_ns = clock_ns
        shape = (capacity.blocks_per_row_max, capacity.block_size)
        self._positions = np.arange(shape[0] * shape[1], dtype=np.int64)
        self._position_of = self._positions.reshape(shape)  # [block of the row, offset]
        self._weight_of = _weights(len(self._positions)).reshape(shape)
        self._entries = np.arange(capacity.table_max)
        # The last block is scrap.
        self._cells = np.zeros((capacity.num_blocks + 1, capacity.block_size), np.int64)
        self._host_cells = np.zeros((capacity.host_blocks, capacity.block_size), np.int64)
        self._lane_token = np.zeros(capacity.lanes, np.int32)
        self._lane_stopped = np.zeros(capacity.lanes, np.bool_)
        self._lane_history = np.zeros(capacity.lanes, np.uint64)
        self._in_flight: deque[StepResult] = deque()
        self._due_ns = 0

    def begin(self, epoch: int) -> None:
        self._lane_token.fill(0)
        self._lane_stopped.fill(False)
        self._in_flight.clear()
        self._due_ns = 0

    def submit(self, plan: BatchPlan, received_ns: int) -> None:
        begin_ns = ready_ns = self._clock_ns()
        status, token = self._execute(plan)
        told = logprobs(plan, token, self.capacity.vocab_size)
        end_ns = self._clock_ns()
        if self._step_ns:
            begin_ns = max(begin_ns, self._due_ns)
            end_ns = self._due_ns = begin_ns + self._step_ns
        timing = StepTiming(
            received_ns=received_ns,
            submitted_ns=begin_ns,
            completed_ns=end_ns,
            h2d_begin_ns=ready_ns,
            h2d_end_ns=ready_ns,
            compute_begin_ns=begin_ns,
            compute_end_ns=end_ns,
        )
        self._in_flight.append(StepResult(plan.epoch, plan.step, status, token, timing, told))

    def poll(self) -> StepResult | None:
        if not self._in_flight:
            return None
        if self._step_ns and self._in_flight[0].timing.completed_ns > self._clock_ns():
            return None
        return self._in_flight.popleft()

    def wait(self, timeout_s: float) -> StepResult | None:
        missing_s = timeout_s
        if self._in_flight:
            missing_s = (self._in_flight[0].timing.completed_ns - self._clock_ns()) / 1e9
        if missing_s > 0:
            time.sleep(min(missing_s, timeout_s))
        return self.poll()

    def close(self) -> None:
        self._in_flight.clear()

    def _execute(self, plan: BatchPlan) -> tuple[Bytes, Int32s]:
        """row_status [R] and row_token [R]. Raises RunnerError."""
        self._copy(plan.copies_out, plan.copies_in)
        token_ids, masked = self._carry_over(plan)
        self._write(plan, token_ids, masked)
        states = self._read(plan, np.where(masked, 0, plan.row_stop))
        if np.count_nonzero(plan.temperature):
            states += salts(plan)
        if np.count_nonzero(penalised := (plan.row_flags & _PENALISED) != 0):
            states += self._remember(plan, token_ids, penalised)
        drawn = (finalise_all(states) % np.uint64(self.capacity.vocab_size)).astype(np.int32)
        stopped = self._stop(plan, drawn)
        samples = ((plan.row_flags & _SAMPLES) != 0) & ~masked
        status = (masked * _MASKED + (samples & stopped) * _STOPPED).astype(np.uint8)
        lane, token = plan.row_lane[samples], drawn[samples]
        self._lane_token[lane] = token
        self._lane_stopped[lane] = stopped[samples]
        return status, np.where(samples, drawn, _NO_TOKEN)

    def _copy(self, out: Int32s, into: Int32s) -> None:
        """[C, 2] and [D, 2]: pairs of a device block and a host block."""
        if len(out):
            self._host_cells[out[:, 1]] = self._cells[out[:, 0]]
        if len(into):
            self._cells[into[:, 0]] = self._host_cells[into[:, 1]]

    def _carry_over(self, plan: BatchPlan) -> tuple[Int32s, Bools]:
        """The input tokens [T], and which rows are masked [R]."""
        carries = (plan.row_flags & _CARRY) != 0
        masked: Bools = carries & self._lane_stopped[plan.row_lane]
        token_ids = plan.token_ids
        if np.count_nonzero(carries):
            token_ids = token_ids.copy()
            last = plan.query_indptr[1:][carries] - 1
            token_ids[last] = self._lane_token[plan.row_lane[carries]]
        return token_ids, masked

    def _write(self, plan: BatchPlan, token_ids: Int32s, masked: Bools) -> None:
        """Writes the cells of the T input tokens."""
        kv_slots = plan.kv_slots
        if np.count_nonzero(masked):
            scrap = self.capacity.num_blocks * self.capacity.block_size
            kv_slots = np.where(np.repeat(masked, np.diff(plan.query_indptr)), scrap, kv_slots)
        cells = (self._positions[plan.positions] << 32) + token_ids
        self._cells.reshape(-1)[kv_slots] = cells + 1

    def _remember(self, plan: BatchPlan, token_ids: Int32s, penalised: Bools) -> UInt64s:
        """Adds the input tokens to the histories; returns what penalties add to the states [R]."""
        lanes = plan.row_lane
        history: UInt64s = np.where(plan.row_start == 0, _NONE, self._lane_history[lanes])
        history += marks(plan, token_ids)
        self._lane_history[lanes[penalised]] = history[penalised]
        return history * strengths(plan) * penalised

    def _read(self, plan: BatchPlan, stop: Int32s) -> UInt64s:
        """The state [R] of the tokens at [0:stop) of each row. Raises RunnerError."""
        first, tables = plan.block_indptr[:-1], plan.block_indptr[1:] - plan.block_indptr[:-1]
        index = self._entries[: len(plan.block_ids)] - first.repeat(tables)
        position, found = self._position_of.take(index, 0), self._cells.take(plan.block_ids, 0)
        wanted = position < stop.repeat(tables)[:, None]
        # An empty cell is 0, and must not pass for position 0.
        wrong = ((found - 1) >> 32 != position) & wanted
        if np.count_nonzero(wrong):
            self._complain(plan, wrong, position, found)
        found *= self._weight_of.take(index, 0)
        found *= wanted
        states: UInt64s = np.add.reduceat(found.sum(axis=1), first).view(np.uint64)
        return states

    def _stop(self, plan: BatchPlan, drawn: Int32s) -> Bools:
        """Whether each row drew a stop id; where those are banned, `drawn` moves past them."""
        bans = (plan.row_flags & _BAN_STOP) != 0
        stopped: Bools = np.logical_or.reduce(plan.stop_ids == drawn[:, None], axis=1)
        while np.count_nonzero(again := stopped & bans):
            drawn[again] = (drawn[again] + 1) % self.capacity.vocab_size
            stopped = np.logical_or.reduce(plan.stop_ids == drawn[:, None], axis=1)
        return stopped

    def _complain(self, plan: BatchPlan, wrong: Bools, position: Int64s, found: Int64s) -> None:
        entry, offset = (int(x) for x in np.argwhere(wrong)[0])
        row = int(np.searchsorted(plan.block_indptr, entry, side="right")) - 1
        holds = (int(found[entry, offset]) - 1) >> 32
        raise RunnerError(
            f"step {plan.step} row {row} lane {plan.row_lane[row]}: position "
            f"{position[entry, offset]} should be in block {plan.block_ids[entry]} "
            f"offset {offset}, which holds {'nothing' if holds < 0 else f'position {holds}'}"
        )


def _weights(count: int) -> Int64s:
    """[count] the weights of positions, as signed numbers: products wrap around all the same."""
    return np.array([weight(p) for p in range(count)], np.uint64).view(np.int64)


# Plain integers: arithmetic of numpy arrays with enum members is several times slower.
_SAMPLES, _CARRY, _BAN_STOP, _PENALISED = (
    int(flag) for flag in (RowFlag.SAMPLES, RowFlag.CARRY, RowFlag.BAN_STOP, RowFlag.PENALISED)
)
_MASKED, _STOPPED = int(RowStatus.MASKED), int(RowStatus.STOPPED)
_NO_TOKEN = np.int32(NO_TOKEN)
_NONE = np.uint64(0)
