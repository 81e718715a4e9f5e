"""Whatever lies in a frame, reading it gives the plan that was sealed or a typed error."""

import random
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svc_wire.capacity import Capacity
from svc_wire.errors import FrameError, InvalidFrame, TornFrame
from svc_wire.frames import BatchPlan, PlanFrame, ResultFrame
from svc_wire.layout import field_offset, plan_dtype
from svc_wire.record import WORD_BYTES, Record
from tests.support.plans import (
    ARRAYS,
    SMALL,
    RowSpec,
    fill_plan,
    plan_buffer,
    random_result,
    random_rows,
    result_buffer,
    same_plan,
)
from tests.support.reference_bounds import is_executable

SEEDS = st.integers(0, 2**32 - 1)
NASTY = st.sampled_from(
    [-(2**31), -2, -1, 0, 1, 2, 4, 5, 8, 11, 12, 16, 17, 20, 21, 22, 47, 48, 49, 50, 2**31 - 1]
)
NASTY_FLOATS = st.sampled_from(
    [float("nan"), float("inf"), -2.01, -2.0, -1e-9, -0.0, 0.0, 0.01, 1.0, 1.01, 2.0, 1e4, 2e4]
)


@st.composite
def capacities(draw: st.DrawFn) -> Capacity:
    rows_max = draw(st.integers(1, 9))
    return Capacity(
        num_blocks=draw(st.integers(1, 40)),
        block_size=draw(st.integers(1, 9)),
        rows_max=rows_max,
        tokens_max=rows_max + draw(st.integers(0, 40)),
        lanes=rows_max + draw(st.integers(0, 4)),
        model_len_max=draw(st.integers(1, 70)),
        vocab_size=draw(st.integers(1, 300)),
        host_blocks=draw(st.integers(0, 9)),
    )


def sealed_plan(seed: int, *, epoch: int = 3, step: int = 8) -> PlanFrame:
    rng = random.Random(seed)
    frame = PlanFrame(plan_buffer(SMALL), SMALL, writable=True)
    fill_plan(frame, random_rows(rng, SMALL), rng, epoch=epoch, step=step)
    return frame


def copy_of(plan: BatchPlan) -> BatchPlan:
    """The plan as it is now, in memory of its own."""
    arrays = {name: getattr(plan, name).copy() for name in [*ARRAYS, "raw"]}
    return BatchPlan(
        epoch=plan.epoch,
        step=plan.step,
        samples=plan.samples,
        written_ns=plan.written_ns,
        **arrays,
    )


def must_be_this_or_refused(frame: PlanFrame, plan: BatchPlan) -> None:
    try:
        found = frame.read(epoch=plan.epoch, step=plan.step)
    except FrameError:
        return
    assert same_plan(found, plan)


@given(capacities(), SEEDS, st.integers(0, 2**24 - 1), st.integers(0, 2**40 - 1))
def test_a_plan_comes_back_as_it_was_written(
    capacity: Capacity, seed: int, epoch: int, step: int
) -> None:
    rng, buffer = random.Random(seed), plan_buffer(capacity)
    rows = random_rows(rng, capacity)
    writer = PlanFrame(buffer, capacity, writable=True)
    fill_plan(writer, rows, rng, epoch=epoch, step=step)
    plan = PlanFrame(buffer, capacity, writable=False).read(epoch=epoch, step=step)
    assert [
        RowSpec(*row)
        for row in zip(
            plan.row_lane.tolist(),
            plan.row_start.tolist(),
            plan.row_stop.tolist(),
            plan.row_flags.tolist(),
            strict=True,
        )
    ] == rows
    assert (plan.epoch, plan.step) == (epoch, step)
    assert plan.is_decode == all(row.stop == row.start + 1 for row in rows)
    for name in ARRAYS:
        found = getattr(plan, name)
        assert not found.flags.writeable
        if name not in ("copies_out", "copies_in"):
            assert found.tobytes() == getattr(writer, name)[: len(found)].tobytes()
    behind = writer.block_ids[len(plan.block_ids) :]
    copies = [*plan.copies_out.reshape(-1).tolist(), *plan.copies_in.reshape(-1).tolist()]
    assert behind[: len(copies)].tolist() == copies
    assert plan.raw.tobytes() == bytes(buffer[: len(plan.raw)])


@given(capacities(), SEEDS, st.data())
def test_a_result_comes_back_as_it_was_written(
    capacity: Capacity, seed: int, data: st.DataObject
) -> None:
    rows = data.draw(st.integers(1, capacity.rows_max))
    result = random_result(random.Random(seed), capacity, rows, epoch=1, step=5)
    frame = ResultFrame(result_buffer(capacity), capacity, writable=True)
    frame.write(result)
    found = frame.read(epoch=1, step=5, rows=rows)
    frame.raw[:] = 0  # a result owns its arrays
    assert found.row_status.tolist() == result.row_status.tolist()
    assert found.row_token.tolist() == result.row_token.tolist()
    assert astuple(found.timing) == astuple(result.timing)
    assert (found.logprobs is None) == (result.logprobs is None)
    if found.logprobs is not None and result.logprobs is not None:
        for name in ("chosen", "top_ids", "top"):
            written = getattr(result.logprobs, name)
            assert getattr(found.logprobs, name).tolist() == written.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_any_flipped_bit_is_noticed(seed: int) -> None:
    frame = sealed_plan(seed)
    plan = copy_of(frame.read(epoch=3, step=8))
    used = len(plan.raw)
    for offset in range(len(frame.raw)):
        for bit in (1 << (offset + seed) % 8, 0x80, 0xFF):
            frame.raw[offset] ^= bit
            if offset < used:
                with pytest.raises(FrameError):
                    frame.read(epoch=3, step=8)
            else:
                assert same_plan(frame.read(epoch=3, step=8), plan)
            frame.raw[offset] ^= bit


@pytest.mark.parametrize("seed", range(3))
def test_a_frame_cut_anywhere_is_noticed(seed: int) -> None:
    frame = sealed_plan(seed)
    plan, whole = copy_of(frame.read(epoch=3, step=8)), frame.raw.copy()
    for offset in range(len(plan.raw) - 1, -1, -1):
        frame.raw[offset] = 0
        must_be_this_or_refused(frame, plan)
        if whole[offset : len(plan.raw)].any():
            with pytest.raises(FrameError):
                frame.read(epoch=3, step=8)


@given(SEEDS, SEEDS)
@settings(max_examples=20)
def test_half_of_one_plan_and_half_of_another_is_noticed(old_seed: int, new_seed: int) -> None:
    old, new = sealed_plan(old_seed, step=4), sealed_plan(new_seed)
    plan, before, after = copy_of(new.read(epoch=3, step=8)), old.raw.copy(), new.raw.copy()
    for border in range(0, len(after), 4):
        new.raw[:border], new.raw[border:] = after[:border], before[border:]
        must_be_this_or_refused(new, plan)
        new.raw[:border], new.raw[border:] = before[:border], after[border:]
        must_be_this_or_refused(new, plan)


def test_rows_that_traded_places_in_half_of_a_frame_are_noticed() -> None:
    """The tear that a plain sum does not see: the same words in another order."""
    frame = PlanFrame(plan_buffer(SMALL), SMALL, writable=True)
    rows = [RowSpec(0, 7, 8, 1), RowSpec(1, 7, 8, 1)]
    fill_plan(frame, rows, random.Random(1), epoch=3, step=8)
    frame.read(epoch=3, step=8)
    tables = frame.block_ids[:4].copy()
    frame.block_ids[:4] = [*tables[2:], *tables[:2]]
    assert tables[:2].tolist() != tables[2:].tolist()
    with pytest.raises(TornFrame):
        frame.read(epoch=3, step=8)


@given(st.binary(max_size=64), SEEDS)
def test_garbage_is_refused(head: bytes, seed: int) -> None:
    garbage = bytearray(random.Random(seed).randbytes(len(plan_buffer(SMALL))))
    garbage[: len(head)] = head
    with pytest.raises(FrameError):
        PlanFrame(garbage, SMALL, writable=False).read(epoch=3, step=8)
    with pytest.raises(FrameError):
        ResultFrame(garbage, SMALL, writable=False).read(epoch=3, step=8, rows=1)


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, int, float]:
    """An array of a plan, where in it, and what to put there."""
    name = draw(st.sampled_from([name for name in ARRAYS if not name.startswith("copies_")]))
    is_float = name in ("temperature", "top_p", "min_p") or name.endswith("_penalty")
    values = NASTY_FLOATS if is_float else NASTY
    if name in ("row_flags", "logprobs"):
        values = st.integers(0, 255)
    return name, draw(st.integers(0, 40)), draw(values)


COUNT_CHANGES = st.dictionaries(
    st.sampled_from(["rows", "tokens", "blocks", "samples", "copies_out", "copies_in"]),
    st.integers(-2, 2) | st.integers(0, 2**32 - 1),
    max_size=2,
)


@given(SEEDS, st.lists(changes(), max_size=4), COUNT_CHANGES)
@settings(max_examples=max(600, settings().max_examples))
@example(0, [], {"rows": 2**32 - 1})
def test_a_sealed_lie_is_refused_exactly_if_it_cannot_be_executed(
    seed: int, lies: list[tuple[str, int, float]], count_lies: dict[str, int]
) -> None:
    """The writer may be anybody: with a right checksum only the bounds stand between."""
    frame = sealed_plan(seed)
    plan = frame.read(epoch=3, step=8)
    counts = {
        "rows": plan.rows,
        "tokens": plan.tokens,
        "blocks": len(plan.block_ids),
        "samples": plan.samples,
        "copies_out": len(plan.copies_out),
        "copies_in": len(plan.copies_in),
    }
    for name, index, value in lies:
        flat = getattr(frame, name).reshape(-1)
        size = getattr(plan, name).size
        if name == "block_ids":  # the copies are behind them
            size += plan.copies_out.size + plan.copies_in.size
        flat[index % min(len(flat), size + 1)] = value
    for name, value in count_lies.items():
        counts[name] = max(0, counts[name] + value) if abs(value) <= 2 else value
    tables = field_offset(plan_dtype(SMALL), "block_ids")
    entries = counts["blocks"] + 2 * (counts["copies_out"] + counts["copies_in"])
    used = min(-(-(tables + 4 * entries) // WORD_BYTES) * WORD_BYTES, len(frame.raw))
    Record._seal(frame, used, epoch=3, step=8, **counts)
    if is_executable(frame, SMALL, **counts):
        frame.read(epoch=3, step=8)
    else:
        with pytest.raises(InvalidFrame):
            frame.read(epoch=3, step=8)


@given(SEEDS, st.integers(0, 300), st.binary(min_size=1, max_size=8))
def test_a_changed_result_is_refused(seed: int, offset: int, change: bytes) -> None:
    frame = ResultFrame(result_buffer(SMALL), SMALL, writable=True)
    frame.write(random_result(random.Random(seed), SMALL, 3, epoch=1, step=2))
    whole = frame.raw.tobytes()
    frame.raw[offset : offset + len(change)] = list(change)[: len(frame.raw) - offset]
    if frame.raw.tobytes() != whole:
        with pytest.raises(FrameError):
            frame.read(epoch=1, step=2, rows=3)


def test_running_sums_that_come_round_are_refused() -> None:
    """Lengths of almost 2**31 add up to a small number in int32."""
    capacity = Capacity(
        num_blocks=1, block_size=2**20, rows_max=3, tokens_max=3, lanes=3,
        model_len_max=2**31 - 2**20 - 1, vocab_size=2,
    )  # fmt: skip
    frame = PlanFrame(plan_buffer(capacity), capacity, writable=True)
    stops = np.array([2**31 - 2**20 - 1, 2**31 - 2**20 - 1, 2**21 + 5])
    frame.row_stop[:3], frame.row_lane[:3] = stops, [0, 1, 2]
    frame.repetition_penalty[:3] = 1
    with np.errstate(over="ignore"):
        frame.query_indptr[1:4] = np.cumsum(stops).astype(np.int32)
    assert frame.query_indptr[3] == 3
    frame.block_indptr[1:4] = np.cumsum(-(-stops // 2**20))
    frame.seal(epoch=1, step=1, rows=3, tokens=3, blocks=int(frame.block_indptr[3]), samples=0)
    with pytest.raises(InvalidFrame, match="query_indptr"):
        frame.read(epoch=1, step=1)


def test_words_per_record_are_whole() -> None:
    assert len(plan_buffer(SMALL)) % WORD_BYTES == len(result_buffer(SMALL)) % WORD_BYTES == 0
