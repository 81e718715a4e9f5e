"""Bounds of a plan: what makes an intact frame safe to execute, whatever wrote it.

The executor indexes device memory with these numbers, where a wrong one is not an exception but
another sequence's KV or a dead GPU context. A numpy call costs about a microsecond whatever the
size, so fields with the same kind of bound are checked as one matrix: their sections are neighbours
of one length in the record, and `layout.stack` is a view of them. Integers are viewed as unsigned,
so that one comparison refuses negative values too.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from svc_wire.capacity import Capacity
from svc_wire.errors import InvalidFrame
from svc_wire.ids import LOGPROBS_MAX, PENALTY_MAX, REPETITION_PENALTY_MIN, RowFlag
from svc_wire.layout import stack
from svc_wire.record import Bytes

if TYPE_CHECKING:
    from svc_wire.frames import BatchPlan, Int32s

TEMPERATURE_MAX = 1e4

_KNOWN_FLAGS = bytes(range(1 + sum(RowFlag)))
_NOT_SAMPLING = bytes(flags for flags in _KNOWN_FLAGS if not flags & RowFlag.SAMPLES)
_KNOWN_LOGPROBS = bytes(range(1 + 1 + LOGPROBS_MAX))
_ONE = np.uint32(1)


class PlanBounds:
    """The bounds of plans in one record: `raw` are its bytes, `dtype` its layout."""

    def __init__(self, raw: Bytes, dtype: np.dtype, capacity: Capacity) -> None:
        length_end, kv_end = capacity.model_len_max, capacity.num_blocks * capacity.block_size
        self._block_size = np.int32(capacity.block_size)
        self._round_up = np.int32(capacity.block_size - 1)
        self._blocks_end = np.uint32(capacity.num_blocks)
        self._copies_end = np.array([capacity.num_blocks, capacity.host_blocks], np.uint32)
        self._stops_last = np.uint32(capacity.vocab_size)
        self._offsets = np.arange(capacity.tokens_max, dtype=np.int32)
        self._row_ints = _Matrix(
            raw, dtype, np.uint32,
            row_lane=capacity.lanes, row_start=length_end, row_stop=length_end + 1,
            prompt_len=length_end + 1, top_k=2**31,
        )  # fmt: skip
        self._token_ints = _Matrix(
            raw, dtype, np.uint32,
            token_ids=capacity.vocab_size, positions=length_end, kv_slots=kv_end,
        )  # fmt: skip
        self._row_floats = _Matrix(
            raw, dtype, np.float32, temperature=TEMPERATURE_MAX, top_p=1.0, min_p=1.0,
            repetition_penalty=PENALTY_MAX, presence_penalty=PENALTY_MAX,
            frequency_penalty=PENALTY_MAX,
        )  # fmt: skip
        lowest = [0.0, 0.0, 0.0, REPETITION_PENALTY_MIN, -PENALTY_MAX, -PENALTY_MAX]
        self._lowest_floats = np.array([[low] for low in lowest], np.float32)

    def check(self, plan: "BatchPlan") -> None:
        """Raises InvalidFrame, naming the field, unless every value is one that can be executed."""
        self._row_ints.check_below(plan.rows)
        self._token_ints.check_below(plan.tokens)
        self._row_floats.check_from(self._lowest_floats, plan.rows)
        self._check_intervals(plan)
        self._check_rows(plan)
        blocks = plan.block_ids.view(np.uint32)
        _require(not np.count_nonzero(blocks >= self._blocks_end), "block_ids")
        # Where a copy goes to nothing else goes: which one came last would be left to the device.
        if len(plan.copies_out):
            self._check_copies(plan.copies_out, 1, "copies_out")
        if len(plan.copies_in):
            self._check_copies(plan.copies_in, 0, "copies_in")

    def _check_copies(self, pairs: "Int32s", target: int, name: str) -> None:
        """All blocks in `pairs` [C, 2] exist, and none in the column `target` comes twice."""
        _require(not np.count_nonzero(pairs.view(np.uint32) >= self._copies_end), name)
        _require(len(np.unique(pairs[:, target])) == len(pairs), name)

    def _check_intervals(self, plan: "BatchPlan") -> None:
        """Rows, their tokens and their tables fit together. Starts and stops are in bounds."""
        lengths = plan.row_stop - plan.row_start
        _require(not np.count_nonzero(lengths < 1), "row_stop")
        _require_sums(plan.query_indptr, lengths, plan.tokens, "query_indptr")
        tables = (plan.row_stop + self._round_up) // self._block_size
        _require_sums(plan.block_indptr, tables, len(plan.block_ids), "block_indptr")
        expected = plan.row_start
        if not plan.is_decode:
            shift = np.repeat(plan.row_start - plan.query_indptr[:-1], lengths)
            expected = self._offsets[: plan.tokens] + shift
        _require(plan.positions.tobytes() == expected.tobytes(), "positions")

    def _check_rows(self, plan: "BatchPlan") -> None:
        """No lane comes twice, flags and counts are known, stop ids are in bounds."""
        _require(np.count_nonzero(np.bincount(plan.row_lane)) == plan.rows, "row_lane")
        flags = plan.row_flags.tobytes()
        _require(not flags.translate(None, delete=_KNOWN_FLAGS), "row_flags")
        _require(len(flags.translate(None, delete=_NOT_SAMPLING)) == plan.samples, "samples")
        asked = plan.logprobs.tobytes()
        _require(not asked.translate(None, delete=_KNOWN_LOGPROBS), "logprobs")
        # NO_TOKEN, which is -1, becomes 0.
        stops = plan.stop_ids.view(np.uint32) + _ONE
        _require(not np.count_nonzero(stops > self._stops_last), "stop_ids")


class _Matrix:
    """Neighbouring sections of one length as one matrix [fields, length], with a limit a field."""

    def __init__(self, raw: Bytes, dtype: np.dtype, item: type, **limits: float) -> None:
        self.names = list(limits)
        self.limits: npt.NDArray[Any] = np.array([[limit] for limit in limits.values()], item)
        self.values = stack(raw, dtype, self.names, item)

    def check_below(self, count: int) -> None:
        """Raises InvalidFrame unless the first `count` values of each field are below its limit."""
        bad = self.values[:, :count] >= self.limits
        if np.count_nonzero(bad):
            self._refuse(bad)

    def check_from(self, lowest: npt.NDArray[Any], count: int) -> None:
        """As `check_below`, for [lowest:limit] with both ends; NaN lies outside."""
        values = self.values[:, :count]
        good = (values >= lowest) & (values <= self.limits)
        if np.count_nonzero(good) != good.size:
            self._refuse(~good)

    def _refuse(self, bad: npt.NDArray[np.bool]) -> None:
        field, index = np.argwhere(bad)[0]
        value = self.values[field, index]
        raise InvalidFrame(f"{self.names[field]}[{index}] is out of bounds: {value}")


def _require(holds: bool | np.bool, name: str) -> None:
    if not holds:
        raise InvalidFrame(f"{name} is inconsistent or out of bounds")


def _require_sums(
    indptr: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], total: int, name: str
) -> None:
    """`indptr` [n + 1] is 0 and the running sums of `lengths` [n], the last of which is `total`."""
    sums = np.add.accumulate(lengths, dtype=np.int64)  # int32 could come round to the same
    _require(indptr[0] == 0 and sums[-1] == total, name)
    _require(not np.count_nonzero(indptr[1:] != sums), name)
