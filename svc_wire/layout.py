"""The bytes of a frame: two numpy structured dtypes, one for plans and one for results.

A frame is one record. Sections start on 64-byte borders. Everything a step uses, except the block
tables and copies, lies at fixed offsets; those come last, so that one copy of `used_bytes` moves a
plan.

    plan    | header | per-row arrays [rows_max] | per-token arrays [tokens_max] | block_ids [...] |
    result  | header | timing | per-row arrays [rows_max] | log-probabilities |

Row r of a plan computes positions [row_start[r]:row_stop[r]) of one sequence. Its input tokens are
[query_indptr[r]:query_indptr[r+1]) of the per-token arrays, and its KV blocks, in order, are
[block_indptr[r]:block_indptr[r+1]) of block_ids (compressed sparse rows).

A result is in use as far as some row of the step asked: to the end of row_token if none wants
log-probabilities, to the end of chosen_logprob if none wants alternatives, else to its own end.

Right behind the tables' `blocks` entries, block_ids holds the step's block copies: `copies_out` and
then `copies_in` pairs (device block, host block). They are done before anything else of the step,
out before in.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from svc_wire.capacity import Capacity
from svc_wire.ids import LOGPROBS_MAX, STOP_IDS_MAX

LAYOUT_VERSION = 3
PLAN_MAGIC = 0x3150_5354  # "TSP1", little-endian
RESULT_MAGIC = 0x3152_5354  # "TSR1"
ALIGNMENT_BYTES = 64

HEADER = np.dtype(
    [
        ("checksum", "<u8"),  # of the record's later 8-byte words that are in use; see record.py
        ("magic", "<u4"),
        ("version", "<u4"),
        ("epoch", "<u8"),  # one life of the pair (executor, scheduler); see docs/wire.md
        ("step", "<u8"),  # grows by one within an epoch, from 1
        ("used_bytes", "<u8"),  # length of the prefix that holds this step, a multiple of 8
        ("rows", "<u4"),
        ("tokens", "<u4"),
        ("blocks", "<u4"),  # entries of block_ids in use
        ("samples", "<u4"),  # rows with RowFlag.SAMPLES
        ("copies_out", "<u4"),  # blocks that are copied to the host before the step
        ("copies_in", "<u4"),  # blocks that are copied from the host then
        ("written_ns", "<i8"),  # CLOCK_MONOTONIC at the writer, when the frame was complete
    ]
)
assert HEADER.itemsize == 72

TIMING = np.dtype(
    [
        # CLOCK_MONOTONIC at the executor's host, in ns:
        ("received_ns", "<i8"),  # the executor saw the plan
        ("submitted_ns", "<i8"),  # everything was enqueued
        ("completed_ns", "<i8"),  # the executor's host learnt of the end
        # Device timeline, ns; same zero for all steps of an epoch:
        ("h2d_begin_ns", "<i8"),
        ("h2d_end_ns", "<i8"),
        ("compute_begin_ns", "<i8"),
        ("compute_end_ns", "<i8"),
        ("d2h_begin_ns", "<i8"),
        ("d2h_end_ns", "<i8"),
    ]
)

SETTINGS = (
    "prompt_len",
    "top_k",
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Sections of 4-byte words that lie side by side and never change in the life of a sequence."""

Section = tuple[str, str, tuple[int, ...]]


def _plan_sections(capacity: Capacity) -> list[Section]:
    rows, tokens = capacity.rows_max, capacity.tokens_max
    return [
        ("query_indptr", "<i4", (rows + 1,)),
        ("block_indptr", "<i4", (rows + 1,)),
        ("row_flags", "|u1", (rows,)),
        ("logprobs", "|u1", (rows,)),  # 0 is off, else 1 + the alternatives
        ("row_lane", "<i4", (rows,)),
        ("row_start", "<i4", (rows,)),
        ("row_stop", "<i4", (rows,)),
        ("prompt_len", "<i4", (rows,)),  # tokens before this position are no output
        ("top_k", "<i4", (rows,)),  # 0 is off
        ("temperature", "<f4", (rows,)),  # 0 is greedy
        ("top_p", "<f4", (rows,)),  # 1 is off
        ("min_p", "<f4", (rows,)),  # 0 is off
        ("repetition_penalty", "<f4", (rows,)),  # 1 is off
        ("presence_penalty", "<f4", (rows,)),  # 0 is off
        ("frequency_penalty", "<f4", (rows,)),  # 0 is off
        ("seed", "<i8", (rows,)),
        ("stop_ids", "<i4", (rows, STOP_IDS_MAX)),  # padded with NO_TOKEN
        ("token_ids", "<i4", (tokens,)),
        ("positions", "<i4", (tokens,)),
        ("kv_slots", "<i4", (tokens,)),  # block_id * block_size + offset, where the KV goes
        ("block_ids", "<i4", (capacity.table_max + 2 * capacity.copies_max,)),
    ]


def _result_sections(capacity: Capacity) -> list[Section]:
    rows = capacity.rows_max
    return [
        ("row_status", "|u1", (rows,)),
        ("row_token", "<i4", (rows,)),
        ("chosen_logprob", "<f4", (rows,)),
        ("top_ids", "<i4", (rows, LOGPROBS_MAX)),  # the most likely first
        ("top_logprobs", "<f4", (rows, LOGPROBS_MAX)),
    ]


def _record(fixed: list[tuple[str, np.dtype]], sections: list[Section]) -> np.dtype:
    names, formats, offsets, end = [], [], [], 0
    for name, dtype in [*fixed, *((n, np.dtype((d, s))) for n, d, s in sections)]:
        names.append(name)
        formats.append(dtype)
        offsets.append(end)
        end = -(-(end + dtype.itemsize) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": end})


@lru_cache(maxsize=8)
def plan_dtype(capacity: Capacity) -> np.dtype:
    """The record of one batch plan."""
    return _record([("header", HEADER)], _plan_sections(capacity))


@lru_cache(maxsize=8)
def result_dtype(capacity: Capacity) -> np.dtype:
    """The record of one step result."""
    return _record([("header", HEADER), ("timing", TIMING)], _result_sections(capacity))


def field_offset(dtype: np.dtype, name: str) -> int:
    """Byte offset of a section in its record."""
    assert dtype.fields is not None
    return int(dtype.fields[name][1])


def stack(
    raw: npt.NDArray[np.uint8], dtype: np.dtype, names: Sequence[str], item: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Neighbouring sections of 4-byte words of a record as one matrix [fields, length]."""
    offsets = [field_offset(dtype, name) for name in names]
    stride, length = offsets[1] - offsets[0], dtype[names[0]].shape[0]
    assert offsets == [offsets[0] + k * stride for k in range(len(names))]
    return np.ndarray((len(names), length), item, raw, offsets[0], (stride, 4))


def layout_text(capacity: Capacity) -> str:
    """The layout as text, one section a line; a golden file holds it for a sample capacity."""
    lines = [f"layout version {LAYOUT_VERSION}"]
    for title, dtype in (("plan", plan_dtype(capacity)), ("result", result_dtype(capacity))):
        lines.append(f"{title}: {dtype.itemsize} bytes")
        for name in dtype.names or ():
            assert dtype.fields is not None
            section, offset = dtype.fields[name][:2]
            base, shape = section.subdtype or (section, ())
            if base.names:
                lines += [
                    f"  {offset + field_offset(base, n):>8} {name}.{n} {base[n].str}"
                    for n in base.names
                ]
            else:
                lines.append(f"  {offset:>8} {name} {base.str}{list(shape)}")
    return "\n".join(lines) + "\n"
