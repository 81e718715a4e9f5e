"""The bounds of a plan once more, one value at a time: what `svc_wire.bounds` must agree with."""

import numpy as np

from svc_wire.bounds import TEMPERATURE_MAX
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame
from svc_wire.ids import (
    LOGPROBS_MAX,
    NO_TOKEN,
    PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    STOP_IDS_MAX,
    RowFlag,
)


def is_executable(
    frame: PlanFrame,
    capacity: Capacity,
    rows: int,
    tokens: int,
    blocks: int,
    samples: int,
    copies_out: int,
    copies_in: int,
) -> bool:
    """Whether the content of `frame`, with these counts in its header, can be executed."""
    if not (
        1 <= rows <= capacity.rows_max
        and rows <= tokens <= capacity.tokens_max
        and rows <= blocks <= capacity.table_max
        and 0 <= copies_out <= capacity.host_blocks
        and 0 <= copies_in <= capacity.host_blocks
    ):
        return False
    copies = frame.block_ids[blocks : blocks + 2 * (copies_out + copies_in)].tolist()
    pairs = list(zip(copies[::2], copies[1::2], strict=True))
    to_host = {host for _, host in pairs[:copies_out]}
    to_device = {device for device, _ in pairs[copies_out:]}
    if len(to_host) != copies_out or len(to_device) != copies_in:
        return False
    if any(
        not (0 <= device < capacity.num_blocks and 0 <= host < capacity.host_blocks)
        for device, host in pairs
    ):
        return False
    query, block = frame.query_indptr.tolist(), frame.block_indptr.tolist()
    if query[0] != 0 or query[rows] != tokens or block[0] != 0 or block[rows] != blocks:
        return False
    return (
        all(_row_is_executable(frame, capacity, row) for row in range(rows))
        and len(set(frame.row_lane[:rows].tolist())) == rows
        and sum(flags & RowFlag.SAMPLES for flags in frame.row_flags[:rows].tolist()) == samples
        and _in(frame.token_ids[:tokens], 0, capacity.vocab_size)
        and _in(frame.kv_slots[:tokens], 0, capacity.num_blocks * capacity.block_size)
        and _in(frame.block_ids[:blocks], 0, capacity.num_blocks)
    )


def _row_is_executable(frame: PlanFrame, capacity: Capacity, row: int) -> bool:
    start, stop = int(frame.row_start[row]), int(frame.row_stop[row])
    first, end = int(frame.query_indptr[row]), int(frame.query_indptr[row + 1])
    table = int(frame.block_indptr[row + 1]) - int(frame.block_indptr[row])
    return (
        0 <= start < stop <= capacity.model_len_max
        and end - first == stop - start
        and frame.positions[first:end].tolist() == list(range(start, stop))
        and table == -(-stop // capacity.block_size)
        and 0 <= frame.row_lane[row] < capacity.lanes
        and frame.row_flags[row] < 16
        and frame.logprobs[row] <= 1 + LOGPROBS_MAX
        and 0 <= frame.prompt_len[row] <= capacity.model_len_max
        and frame.top_k[row] >= 0
        and 0 <= frame.temperature[row] <= TEMPERATURE_MAX
        and 0 <= frame.top_p[row] <= 1
        and 0 <= frame.min_p[row] <= 1
        and REPETITION_PENALTY_MIN <= frame.repetition_penalty[row] <= PENALTY_MAX
        and -PENALTY_MAX <= frame.presence_penalty[row] <= PENALTY_MAX
        and -PENALTY_MAX <= frame.frequency_penalty[row] <= PENALTY_MAX
        and _in(frame.stop_ids[row][:STOP_IDS_MAX], NO_TOKEN, capacity.vocab_size)
    )


def _in(values: np.ndarray, low: int, end: int) -> bool:
    return all(low <= value < end for value in values.tolist())
