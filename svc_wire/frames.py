"""Frames: a plan or a result as numpy views over shared memory; one side seals, the other reads.

The writer fills the arrays of a `PlanFrame`, then calls `seal`. The reader calls `read`, which
checks everything before anything is used: magic, version, checksum, epoch and step (record.py),
then every bound (bounds.py). A plan that passes can be executed without a crash, whatever wrote it.

A plan's arrays stay views of the shared page, so that a device copies them from there. Nobody
writes that page before the step's result is committed: one scheduler is bound by the depth, and
two are kept apart by the lock of their role in the runtime directory.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from svc_wire.bounds import PlanBounds
from svc_wire.capacity import Capacity
from svc_wire.errors import InvalidFrame
from svc_wire.ids import LOGPROBS_MAX, NO_TOKEN, RowStatus
from svc_wire.layout import (
    PLAN_MAGIC,
    RESULT_MAGIC,
    SETTINGS,
    TIMING,
    field_offset,
    plan_dtype,
    result_dtype,
    stack,
)
from svc_wire.record import WORD_BYTES, Bytes, Header, Memory, Record

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """The complete, immutable order for one step: R rows, T tokens, B block-table entries.

    A plan says everything that the executor needs. Its arrays are read-only views, valid until the
    step's result has been published.
    """

    epoch: int
    step: int
    samples: int
    """Rows that sample."""
    written_ns: int
    query_indptr: Int32s  # [R + 1]
    block_indptr: Int32s  # [R + 1]
    row_lane: Int32s  # [R]
    row_start: Int32s  # [R]
    row_stop: Int32s  # [R]
    prompt_len: Int32s  # [R]
    row_flags: Bytes  # [R]
    logprobs: Bytes  # [R] 0 is off, else 1 + the alternatives
    temperature: Float32s  # [R]
    top_k: Int32s  # [R]
    top_p: Float32s  # [R]
    min_p: Float32s  # [R]
    repetition_penalty: Float32s  # [R]
    presence_penalty: Float32s  # [R]
    frequency_penalty: Float32s  # [R]
    seed: Int64s  # [R]
    stop_ids: Int32s  # [R, STOP_IDS_MAX]
    token_ids: Int32s  # [T]
    positions: Int32s  # [T]
    kv_slots: Int32s  # [T]
    block_ids: Int32s  # [B]
    copies_out: Int32s  # [C, 2] device block, host block: before anything else of the step
    copies_in: Int32s  # [D, 2] device block, host block: after those, before the rest
    raw: Bytes
    """The used bytes of the whole record, header first: what a device copies in one piece."""

    @property
    def rows(self) -> int:
        return len(self.row_lane)

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def is_decode(self) -> bool:
        """Every row has exactly one input token."""
        return self.rows == self.tokens


@dataclass(frozen=True, slots=True, eq=False)
class StepTiming:
    """When a step passed its stations; the names and clocks of `layout.TIMING`, in ns."""

    received_ns: int = 0
    submitted_ns: int = 0
    completed_ns: int = 0
    h2d_begin_ns: int = 0
    h2d_end_ns: int = 0
    compute_begin_ns: int = 0
    compute_end_ns: int = 0
    d2h_begin_ns: int = 0
    d2h_end_ns: int = 0

    def as_tuple(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in TIMING.names or ())


@dataclass(frozen=True, slots=True, eq=False)
class StepLogprobs:
    """Log-probabilities in the model's own distribution: before bans, penalties, temperature and
    filters. At most 0, never NaN; without meaning for rows that did not ask or have no token.
    """

    chosen: Float32s  # [R] of the sampled token
    top_ids: Int32s  # [R, LOGPROBS_MAX], the most likely first; NO_TOKEN beyond the vocabulary
    top: Float32s  # [R, LOGPROBS_MAX]; both [R, 0] if no row asked for alternatives


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What a step produced; owns its arrays (R rows, in the order of the plan)."""

    epoch: int
    step: int
    row_status: Bytes  # [R] RowStatus
    row_token: Int32s  # [R] NO_TOKEN where nothing was sampled
    timing: StepTiming
    logprobs: StepLogprobs | None = None
    """None if no row of the step asked."""


class PlanFrame(Record):
    """One batch plan in shared memory. The scheduler writes it, the executor reads it."""

    magic = PLAN_MAGIC

    def __init__(
        self, buffer: Memory, capacity: Capacity, offset: int = 0, *, writable: bool
    ) -> None:
        dtype = plan_dtype(capacity)
        super().__init__(buffer, dtype, offset, writable)
        self.capacity = capacity
        self._tables_offset = field_offset(dtype, "block_ids")
        self._bounds = PlanBounds(self.raw, dtype, capacity)
        view = self.sections
        self.query_indptr: Int32s = view["query_indptr"]
        self.block_indptr: Int32s = view["block_indptr"]
        self.row_lane: Int32s = view["row_lane"]
        self.row_start: Int32s = view["row_start"]
        self.row_stop: Int32s = view["row_stop"]
        self.prompt_len: Int32s = view["prompt_len"]
        self.row_flags: Bytes = view["row_flags"]
        self.logprobs: Bytes = view["logprobs"]
        self.temperature: Float32s = view["temperature"]
        self.top_k: Int32s = view["top_k"]
        self.top_p: Float32s = view["top_p"]
        self.min_p: Float32s = view["min_p"]
        self.repetition_penalty: Float32s = view["repetition_penalty"]
        self.presence_penalty: Float32s = view["presence_penalty"]
        self.frequency_penalty: Float32s = view["frequency_penalty"]
        self.seed: Int64s = view["seed"]
        self.stop_ids: Int32s = view["stop_ids"]
        self.settings: Words = stack(self.raw, dtype, SETTINGS, np.uint32)
        """The sections that SETTINGS names, as one matrix [len(SETTINGS), rows_max]."""
        self.token_ids: Int32s = view["token_ids"]
        self.positions: Int32s = view["positions"]
        self.kv_slots: Int32s = view["kv_slots"]
        self.block_ids: Int32s = view["block_ids"]

    def seal(
        self,
        *,
        epoch: int,
        step: int,
        rows: int,
        tokens: int,
        blocks: int,
        samples: int,
        copies_out: int = 0,
        copies_in: int = 0,
    ) -> None:
        """Completes the frame: header and checksum. The arrays must be filled before."""
        assert samples <= rows <= self.capacity.rows_max
        assert rows <= tokens <= self.capacity.tokens_max
        assert rows <= blocks <= self.capacity.table_max
        assert max(copies_out, copies_in) <= self.capacity.host_blocks
        self._seal(
            self._used_bytes(blocks, copies_out + copies_in),
            epoch=epoch, step=step, rows=rows, tokens=tokens, blocks=blocks, samples=samples,
            copies_out=copies_out, copies_in=copies_in,
        )  # fmt: skip

    def read(self, *, epoch: int, step: int) -> BatchPlan:
        """The plan of (epoch, step), fully checked.

        Raises ForeignFrame, TornFrame, StaleFrame or InvalidFrame.
        """
        header = self._open(epoch, step)
        rows, tokens, blocks = header.rows, header.tokens, header.blocks
        self._check_counts(header)
        copies = header.copies_out + header.copies_in
        pairs = self.block_ids[blocks : blocks + 2 * copies].reshape(copies, 2)
        plan = BatchPlan(
            epoch=epoch,
            step=step,
            samples=header.samples,
            written_ns=header.written_ns,
            query_indptr=self.query_indptr[: rows + 1],
            block_indptr=self.block_indptr[: rows + 1],
            row_lane=self.row_lane[:rows],
            row_start=self.row_start[:rows],
            row_stop=self.row_stop[:rows],
            prompt_len=self.prompt_len[:rows],
            row_flags=self.row_flags[:rows],
            logprobs=self.logprobs[:rows],
            temperature=self.temperature[:rows],
            top_k=self.top_k[:rows],
            top_p=self.top_p[:rows],
            min_p=self.min_p[:rows],
            repetition_penalty=self.repetition_penalty[:rows],
            presence_penalty=self.presence_penalty[:rows],
            frequency_penalty=self.frequency_penalty[:rows],
            seed=self.seed[:rows],
            stop_ids=self.stop_ids[:rows],
            token_ids=self.token_ids[:tokens],
            positions=self.positions[:tokens],
            kv_slots=self.kv_slots[:tokens],
            block_ids=self.block_ids[:blocks],
            copies_out=pairs[: header.copies_out],
            copies_in=pairs[header.copies_out :],
            raw=self.raw[: header.used_bytes],
        )
        self._bounds.check(plan)
        return plan

    def write_copies(self, blocks: int, copies_out: Int32s, copies_in: Int32s) -> None:
        """Puts the copies, [C, 2] and [D, 2], behind the `blocks` entries of the block tables."""
        for pairs in (copies_out, copies_in):
            self.block_ids[blocks : blocks + pairs.size] = pairs.reshape(-1)
            blocks += pairs.size

    def _used_bytes(self, blocks: int, copies: int) -> int:
        words = blocks + 2 * copies
        return -(-(self._tables_offset + 4 * words) // WORD_BYTES) * WORD_BYTES

    def _check_counts(self, header: Header) -> None:
        """Raises InvalidFrame unless the header's counts are ones that the arrays can hold."""
        rows, tokens, blocks, capacity = header.rows, header.tokens, header.blocks, self.capacity
        if not (
            1 <= rows <= capacity.rows_max
            and rows <= tokens <= capacity.tokens_max
            and rows <= blocks <= capacity.table_max
            and max(header.copies_out, header.copies_in) <= capacity.host_blocks
            and header.used_bytes == self._used_bytes(blocks, header.copies_out + header.copies_in)
        ):
            raise InvalidFrame(f"the counts of the header do not fit the capacity: {header}")


class ResultFrame(Record):
    """One step result in shared memory. The executor writes it, the scheduler reads it."""

    magic = RESULT_MAGIC

    def __init__(
        self, buffer: Memory, capacity: Capacity, offset: int = 0, *, writable: bool
    ) -> None:
        dtype = result_dtype(capacity)
        super().__init__(buffer, dtype, offset, writable)
        self.capacity = capacity
        self._timing: npt.NDArray[np.void] = self.raw.view(dtype)["timing"]
        self._row_status: Bytes = self.sections["row_status"]
        self._row_token: Int32s = self.sections["row_token"]
        self._chosen: Float32s = self.sections["chosen_logprob"]
        self._top_ids: Int32s = self.sections["top_ids"]
        self._top: Float32s = self.sections["top_logprobs"]
        # What is in use without log-probabilities, with those of the chosen tokens, with all.
        self._plain_bytes = field_offset(dtype, "chosen_logprob")
        self._chosen_bytes = field_offset(dtype, "top_ids")

    def write(self, result: StepResult) -> None:
        """Fills and completes the frame."""
        rows = len(result.row_status)
        assert rows == len(result.row_token) <= self.capacity.rows_max
        self._row_status[:rows] = result.row_status
        self._row_token[:rows] = result.row_token
        self._timing[0] = result.timing.as_tuple()
        used_bytes = self._write_logprobs(result.logprobs, rows)
        self._seal(used_bytes, epoch=result.epoch, step=result.step, rows=rows)

    def _write_logprobs(self, logprobs: StepLogprobs | None, rows: int) -> int:
        """Returns how much of the record is in use."""
        if logprobs is None:
            return self._plain_bytes
        self._chosen[:rows] = logprobs.chosen
        if not logprobs.top.size:
            return self._chosen_bytes
        self._top_ids[:rows] = logprobs.top_ids
        self._top[:rows] = logprobs.top
        return self.raw.nbytes

    def read(self, *, epoch: int, step: int, rows: int) -> StepResult:
        """The result of (epoch, step), which was planned with `rows` rows; a copy.

        Raises ForeignFrame, TornFrame, StaleFrame or InvalidFrame.
        """
        header = self._open(epoch, step)
        if header.rows != rows:
            raise InvalidFrame(f"the result has {header.rows} rows, the plan had {rows}")
        status, token = self._row_status[:rows].copy(), self._row_token[:rows].copy()
        if np.maximum.reduce(status) > RowStatus.ERROR:
            raise InvalidFrame(f"row_status has an unknown value: {status}")
        self._check_tokens("row_token", token)
        timing = StepTiming(*self._timing.item())
        logprobs = self._read_logprobs(header.used_bytes, rows)
        return StepResult(epoch, step, status, token, timing, logprobs)

    def _read_logprobs(self, used_bytes: int, rows: int) -> StepLogprobs | None:
        """As far as the record is in use. Raises InvalidFrame."""
        if used_bytes == self._plain_bytes:
            return None
        if used_bytes not in (self._chosen_bytes, self.raw.nbytes):
            raise InvalidFrame(f"no result has {used_bytes} bytes in use")
        top = np.s_[:rows, : LOGPROBS_MAX if used_bytes == self.raw.nbytes else 0]
        found = StepLogprobs(
            self._chosen[:rows].copy(), self._top_ids[top].copy(), self._top[top].copy()
        )
        for name, values in (("chosen_logprob", found.chosen), ("top_logprobs", found.top)):
            if np.count_nonzero(values <= 0) != values.size:  # NaN is not
                raise InvalidFrame(f"{name} has a value that is none: {values}")
        self._check_tokens("top_ids", found.top_ids)
        return found

    def _check_tokens(self, name: str, ids: Int32s) -> None:
        """Raises InvalidFrame unless each is NO_TOKEN or in the vocabulary."""
        if ids.size and not (
            np.minimum.reduce(ids, axis=None) >= NO_TOKEN
            and np.maximum.reduce(ids, axis=None) < self.capacity.vocab_size
        ):
            raise InvalidFrame(f"{name} is out of bounds: {ids}")
