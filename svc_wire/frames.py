"""Frames: a plan or a result as numpy views over shared memory, sealed by one side, read by the other.

The writer fills the arrays of a `PlanFrame`, then calls `seal`. The reader calls `read`, which checks
everything before anything is used: magic, version, checksum, epoch and step, then every bound. A plan
that passes can be executed without a crash, whatever wrote it.
"""

import mmap
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from svc_wire.capacity import Capacity
from svc_wire.errors import ForeignFrame, InvalidFrame, StaleFrame, TornFrame
from svc_wire.ids import NO_TOKEN, STOP_IDS_MAX, RowFlag, RowStatus
from svc_wire.layout import (
    LAYOUT_VERSION,
    PLAN_MAGIC,
    RESULT_MAGIC,
    TIMING,
    field_offset,
    plan_dtype,
    result_dtype,
)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Memory = mmap.mmap | bytearray

_ALL_FLAGS = int(RowFlag.SAMPLES | RowFlag.CARRY | RowFlag.BAN_STOP)


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """The complete, immutable order for one step: read-only views, R rows, T tokens, B table entries.

    A plan says everything that the executor needs. The views are valid until the step's result has
    been published.
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
    row_flags: Bytes  # [R]
    temperature: Float32s  # [R]
    top_k: Int32s  # [R]
    top_p: Float32s  # [R]
    min_p: Float32s  # [R]
    seed: Int64s  # [R]
    stop_ids: Int32s  # [R, STOP_IDS_MAX]
    token_ids: Int32s  # [T]
    positions: Int32s  # [T]
    kv_slots: Int32s  # [T]
    block_ids: Int32s  # [B]
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
class StepResult:
    """What a step produced; owns its arrays (R rows, in the order of the plan)."""

    epoch: int
    step: int
    row_status: Bytes  # [R] RowStatus
    row_token: Int32s  # [R] NO_TOKEN where nothing was sampled
    timing: StepTiming


def _checksum(record: Bytes, used_bytes: int) -> int:
    """Sum of the used 8-byte words after the checksum itself, mod 2**64."""
    return int(np.add.reduce(record[8:used_bytes].view(np.uint64)))


class _Frame:
    """What both kinds of record share: raw bytes, header, seal and open."""

    magic: int

    def __init__(self, buffer: Memory, dtype: np.dtype, offset: int, writable: bool) -> None:
        self.record = np.ndarray((dtype.itemsize,), np.uint8, buffer, offset)
        if not writable:
            self.record.flags.writeable = False
        self._view = self.record.view(dtype)
        self._header = self._view["header"]

    def _seal(
        self, used_bytes: int, *, epoch: int, step: int, counts: tuple[int, int, int, int]
    ) -> None:
        rows, tokens, blocks, samples = counts
        self._header[0] = (
            0, self.magic, LAYOUT_VERSION, epoch, step, used_bytes,
            rows, tokens, blocks, samples, time.monotonic_ns(),
        )  # fmt: skip
        self._header["checksum"][0] = _checksum(self.record, used_bytes)

    def _open(self, epoch: int, step: int) -> tuple[int, int, int, int, int, int]:
        """Returns used_bytes, rows, tokens, blocks, samples, written_ns of a frame that is intact.

        Raises ForeignFrame, StaleFrame or TornFrame.
        """
        checksum, magic, version, found_epoch, found_step, used, *counts, written = (
            self._header.item()
        )
        if magic != self.magic or version != LAYOUT_VERSION:
            raise ForeignFrame(
                f"expected magic {self.magic:#x} version {LAYOUT_VERSION}, found {magic:#x} version {version}"
            )
        if used % 8 or not self._header.nbytes <= used <= self.record.nbytes:
            raise TornFrame(f"used_bytes is {used}, the record has {self.record.nbytes}")
        if checksum != _checksum(self.record, used):
            raise TornFrame(f"checksum of step {found_step} does not match its content")
        if (found_epoch, found_step) != (epoch, step):
            raise StaleFrame(
                f"expected epoch {epoch} step {step}, found {found_epoch} step {found_step}"
            )
        rows, tokens, blocks, samples = counts
        return used, rows, tokens, blocks, samples, written


class PlanFrame(_Frame):
    """One batch plan in shared memory. The scheduler writes it, the executor reads it."""

    magic = PLAN_MAGIC

    def __init__(
        self, buffer: Memory, capacity: Capacity, offset: int = 0, *, writable: bool
    ) -> None:
        dtype = plan_dtype(capacity)
        super().__init__(buffer, dtype, offset, writable)
        self.capacity = capacity
        self._tables_offset = field_offset(dtype, "block_ids")
        view = self._view[0]
        self.query_indptr: Int32s = view["query_indptr"]
        self.block_indptr: Int32s = view["block_indptr"]
        self.row_lane: Int32s = view["row_lane"]
        self.row_start: Int32s = view["row_start"]
        self.row_stop: Int32s = view["row_stop"]
        self.row_flags: Bytes = view["row_flags"]
        self.temperature: Float32s = view["temperature"]
        self.top_k: Int32s = view["top_k"]
        self.top_p: Float32s = view["top_p"]
        self.min_p: Float32s = view["min_p"]
        self.seed: Int64s = view["seed"]
        self.stop_ids: Int32s = view["stop_ids"]
        self.token_ids: Int32s = view["token_ids"]
        self.positions: Int32s = view["positions"]
        self.kv_slots: Int32s = view["kv_slots"]
        self.block_ids: Int32s = view["block_ids"]

    def seal(
        self, *, epoch: int, step: int, rows: int, tokens: int, blocks: int, samples: int
    ) -> None:
        """Completes the frame: header and checksum. The arrays must be filled before."""
        used = -(-(self._tables_offset + 4 * blocks) // 8) * 8
        self._seal(used, epoch=epoch, step=step, counts=(rows, tokens, blocks, samples))

    def read(self, *, epoch: int, step: int) -> BatchPlan:
        """The plan of (epoch, step), fully checked.

        Raises ForeignFrame, TornFrame, StaleFrame or InvalidFrame.
        """
        used, rows, tokens, blocks, samples, written_ns = self._open(epoch, step)
        capacity = self.capacity
        _require(1 <= rows <= capacity.rows_max, "rows", rows)
        _require(rows <= tokens <= capacity.tokens_max, "tokens", tokens)
        _require(rows <= blocks <= capacity.table_max, "blocks", blocks)
        _require(used == -(-(self._tables_offset + 4 * blocks) // 8) * 8, "used_bytes", used)
        plan = BatchPlan(
            epoch=epoch,
            step=step,
            samples=samples,
            written_ns=written_ns,
            query_indptr=self.query_indptr[: rows + 1],
            block_indptr=self.block_indptr[: rows + 1],
            row_lane=self.row_lane[:rows],
            row_start=self.row_start[:rows],
            row_stop=self.row_stop[:rows],
            row_flags=self.row_flags[:rows],
            temperature=self.temperature[:rows],
            top_k=self.top_k[:rows],
            top_p=self.top_p[:rows],
            min_p=self.min_p[:rows],
            seed=self.seed[:rows],
            stop_ids=self.stop_ids[:rows],
            token_ids=self.token_ids[:tokens],
            positions=self.positions[:tokens],
            kv_slots=self.kv_slots[:tokens],
            block_ids=self.block_ids[:blocks],
            raw=self.record[:used],
        )
        _check_plan(plan, capacity)
        return plan


class ResultFrame(_Frame):
    """One step result in shared memory. The executor writes it, the scheduler reads it."""

    magic = RESULT_MAGIC

    def __init__(
        self, buffer: Memory, capacity: Capacity, offset: int = 0, *, writable: bool
    ) -> None:
        dtype = result_dtype(capacity)
        super().__init__(buffer, dtype, offset, writable)
        self.capacity = capacity
        self._timing = self._view["timing"]
        self._row_status: Bytes = self._view["row_status"][0]
        self._row_token: Int32s = self._view["row_token"][0]

    def write(self, result: StepResult) -> None:
        """Fills and completes the frame."""
        rows = len(result.row_status)
        assert rows == len(result.row_token) <= self.capacity.rows_max
        self._row_status[:rows] = result.row_status
        self._row_token[:rows] = result.row_token
        self._timing[0] = result.timing.as_tuple()
        self._seal(
            self.record.nbytes, epoch=result.epoch, step=result.step, counts=(rows, rows, 0, 0)
        )

    def read(self, *, epoch: int, step: int, rows: int) -> StepResult:
        """The result of (epoch, step), which was planned with `rows` rows; a copy.

        Raises ForeignFrame, TornFrame, StaleFrame or InvalidFrame.
        """
        _, found_rows, _, _, _, _ = self._open(epoch, step)
        _require(found_rows == rows, "rows", found_rows)
        status, token = self._row_status[:rows].copy(), self._row_token[:rows].copy()
        _require(int(status.max(initial=0)) <= RowStatus.ERROR, "row_status", status)
        _require_range(token, NO_TOKEN, self.capacity.vocab_size, "row_token")
        return StepResult(epoch, step, status, token, StepTiming(*self._timing.item()))


def _require(holds: bool | np.bool, name: str, value: object) -> None:
    if not holds:
        raise InvalidFrame(f"{name} is out of bounds: {value}")


def _require_range(values: Int32s, low: int, high: int, name: str) -> None:
    """All of `values` lie in [low:high). Raises InvalidFrame."""
    if len(values) and not low <= int(values.min()) <= int(values.max()) < high:
        raise InvalidFrame(f"{name} has values outside [{low}:{high})")


def _check_plan(plan: BatchPlan, capacity: Capacity) -> None:
    """Every value of the plan is within its bounds. Raises InvalidFrame."""
    lengths = np.diff(plan.query_indptr)
    tables = np.diff(plan.block_indptr)
    _require(
        plan.query_indptr[0] == 0 and plan.query_indptr[-1] == plan.tokens, "query_indptr", "ends"
    )
    _require(
        plan.block_indptr[0] == 0 and plan.block_indptr[-1] == len(plan.block_ids),
        "block_indptr",
        "ends",
    )
    _require_range(plan.row_start, 0, capacity.model_len_max, "row_start")
    _require_range(plan.row_stop, 1, capacity.model_len_max + 1, "row_stop")
    _require(bool((lengths >= 1).all()), "query_indptr", "not increasing")
    _require(
        bool((plan.row_stop - plan.row_start == lengths).all()), "row_stop - row_start", lengths
    )
    needed = (plan.row_stop + (capacity.block_size - 1)) // capacity.block_size
    _require(
        bool((tables == needed).all()), "block_indptr", "not the blocks that [0:row_stop) needs"
    )
    _require_range(plan.row_lane, 0, capacity.lanes, "row_lane")
    _require(int(np.bincount(plan.row_lane).max()) == 1, "row_lane", "a lane twice")
    _require_range(plan.token_ids, 0, capacity.vocab_size, "token_ids")
    _require_range(plan.block_ids, 0, capacity.num_blocks, "block_ids")
    _require_range(plan.kv_slots, 0, capacity.num_blocks * capacity.block_size, "kv_slots")
    if plan.is_decode:
        _require(bool((plan.positions == plan.row_start).all()), "positions", "not row_start")
    else:
        first = np.repeat(plan.row_start - plan.query_indptr[:-1], lengths)
        _require(
            bool((plan.positions - np.arange(plan.tokens) == first).all()),
            "positions",
            "not [start:stop)",
        )
    _require(int(plan.row_flags.max()) <= _ALL_FLAGS, "row_flags", "unknown bits")
    _require(int((plan.row_flags & RowFlag.SAMPLES).sum()) == plan.samples, "samples", plan.samples)
    _require_range(plan.top_k, 0, 2**31 - 1, "top_k")
    _require_range(plan.stop_ids.reshape(-1), NO_TOKEN, capacity.vocab_size, "stop_ids")
    for name, low, high in (("temperature", 0.0, 1e4), ("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0)):
        values: Float32s = getattr(plan, name)
        # Written so that NaN fails.
        _require(bool((values >= low).all() and (values <= high).all()), name, values)


assert STOP_IDS_MAX >= 1
