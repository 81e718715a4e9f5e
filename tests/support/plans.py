"""Valid random plans and results for the tests and benches of the wire."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from svc_wire.capacity import Capacity
from svc_wire.frames import BatchPlan, Int32s, PlanFrame, StepLogprobs, StepResult, StepTiming
from svc_wire.ids import (
    LOGPROBS_MAX,
    NO_TOKEN,
    PENALTY_MAX,
    STOP_IDS_MAX,
    RowFlag,
    RowStatus,
)
from svc_wire.layout import plan_dtype, result_dtype

SMALL = Capacity(
    num_blocks=12, block_size=4, rows_max=4, tokens_max=16, lanes=5, model_len_max=21,
    vocab_size=50, host_blocks=5,
)  # fmt: skip

ARRAYS = [
    field.name
    for field in fields(BatchPlan)
    if field.name not in ("epoch", "step", "samples", "written_ns", "raw")
]


@dataclass(frozen=True)
class RowSpec:
    """One row: positions [start:stop) of the sequence on `lane`, with RowFlag bits."""

    lane: int
    start: int
    stop: int
    flags: int


def plan_buffer(capacity: Capacity) -> bytearray:
    return bytearray(plan_dtype(capacity).itemsize)


def result_buffer(capacity: Capacity) -> bytearray:
    return bytearray(result_dtype(capacity).itemsize)


def random_rows(rng: random.Random, capacity: Capacity) -> list[RowSpec]:
    """At least one row, within the capacity's bounds."""
    lanes = rng.sample(range(capacity.lanes), rng.randint(1, capacity.rows_max))
    budget, rows = capacity.tokens_max - len(lanes), []
    for lane in lanes:
        start = rng.randrange(capacity.model_len_max)
        extra = rng.randint(0, min(budget, capacity.model_len_max - start - 1))
        budget -= extra
        rows.append(RowSpec(lane, start, start + 1 + extra, rng.randrange(16)))
    return rows


def fill_plan(
    frame: PlanFrame, rows: Sequence[RowSpec], rng: random.Random, *, epoch: int, step: int
) -> None:
    """Writes and seals a plan with these rows; everything else is drawn within its bounds."""
    capacity, tokens, blocks = frame.capacity, 0, 0

    def draw(make: Callable[[], float], count: int) -> list[float]:
        return [make() for _ in range(count)]

    frame.query_indptr[0] = frame.block_indptr[0] = 0
    for r, row in enumerate(rows):
        count, table = row.stop - row.start, -(-row.stop // capacity.block_size)
        frame.row_lane[r], frame.row_start[r], frame.row_stop[r] = row.lane, row.start, row.stop
        frame.row_flags[r] = row.flags
        frame.positions[tokens : tokens + count] = np.arange(row.start, row.stop)
        tokens, blocks = tokens + count, blocks + table
        frame.query_indptr[r + 1], frame.block_indptr[r + 1] = tokens, blocks
    n = len(rows)
    frame.temperature[:n] = draw(lambda: rng.choice([0.0, -0.0, rng.uniform(0, 2)]), n)
    frame.top_k[:n] = draw(lambda: rng.choice([0, 1, 2**31 - 1]), n)
    frame.top_p[:n] = draw(rng.random, n)
    frame.min_p[:n] = draw(rng.random, n)
    frame.repetition_penalty[:n] = draw(lambda: rng.uniform(0.1, PENALTY_MAX), n)
    frame.presence_penalty[:n] = draw(lambda: rng.uniform(-PENALTY_MAX, PENALTY_MAX), n)
    frame.frequency_penalty[:n] = draw(lambda: rng.uniform(-PENALTY_MAX, PENALTY_MAX), n)
    frame.prompt_len[:n] = draw(lambda: rng.randint(0, capacity.model_len_max), n)
    frame.logprobs[:n] = draw(lambda: rng.choice([0, 1, 2, 1 + LOGPROBS_MAX]), n)
    frame.seed[:n] = draw(lambda: rng.randrange(-(2**63), 2**63), n)
    frame.stop_ids[:n] = np.reshape(
        draw(lambda: rng.randrange(NO_TOKEN, capacity.vocab_size), n * STOP_IDS_MAX),
        (n, STOP_IDS_MAX),
    )
    frame.token_ids[:tokens] = draw(lambda: rng.randrange(capacity.vocab_size), tokens)
    kv_end = capacity.num_blocks * capacity.block_size
    frame.kv_slots[:tokens] = draw(lambda: rng.randrange(kv_end), tokens)
    frame.block_ids[:blocks] = draw(lambda: rng.randrange(capacity.num_blocks), blocks)
    copies_out, copies_in = _draw_copies(rng, capacity), _draw_copies(rng, capacity)
    frame.write_copies(blocks, copies_out, copies_in)
    frame.seal(
        epoch=epoch, step=step, rows=n, tokens=tokens, blocks=blocks,
        samples=sum(bool(row.flags & RowFlag.SAMPLES) for row in rows),
        copies_out=len(copies_out), copies_in=len(copies_in),
    )  # fmt: skip


def _draw_copies(rng: random.Random, capacity: Capacity) -> Int32s:
    """[C, 2] device block, host block; in half of all plans none."""
    count = rng.randint(0, min(capacity.host_blocks, capacity.num_blocks)) * rng.randint(0, 1)
    device = rng.sample(range(capacity.num_blocks), count)
    host = rng.sample(range(capacity.host_blocks), count)
    return np.array([device, host], np.int32).T.reshape(count, 2)


def random_result(
    rng: random.Random, capacity: Capacity, rows: int, *, epoch: int, step: int
) -> StepResult:
    return StepResult(
        epoch,
        step,
        np.array([rng.choice(list(RowStatus)) for _ in range(rows)], np.uint8),
        np.array([rng.randrange(NO_TOKEN, capacity.vocab_size) for _ in range(rows)], np.int32),
        StepTiming(*(rng.randrange(2**63) for _ in fields(StepTiming))),
        rng.choice([None, _draw_logprobs(rng, capacity, rows)]),
    )


def _draw_logprobs(rng: random.Random, capacity: Capacity, rows: int) -> StepLogprobs:
    """Of the chosen tokens, in half of all results with alternatives."""
    alternatives = rng.choice([0, LOGPROBS_MAX])
    shape = (rows, alternatives)
    values = [-rng.expovariate(1) for _ in range(rows * (1 + alternatives))]
    ids = [rng.randrange(NO_TOKEN, capacity.vocab_size) for _ in range(rows * alternatives)]
    return StepLogprobs(
        np.array(values[:rows], np.float32),
        np.array(ids, np.int32).reshape(shape),
        np.array(values[rows:], np.float32).reshape(shape),
    )


def same_plan(a: BatchPlan, b: BatchPlan) -> bool:
    """Equal in every value that the executor reads."""
    return (a.epoch, a.step, a.samples) == (b.epoch, b.step, b.samples) and all(
        getattr(a, name).tobytes() == getattr(b, name).tobytes() for name in ARRAYS
    )
