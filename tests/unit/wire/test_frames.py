"""Which error a frame gives, and what it says; tests/property has the rest."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from svc_wire.errors import ForeignFrame, FrameError, InvalidFrame, StaleFrame, TornFrame
from svc_wire.frames import PlanFrame, ResultFrame, StepLogprobs, StepResult, StepTiming
from svc_wire.ids import LOGPROBS_MAX, NO_TOKEN
from svc_wire.record import Record
from tests.support.plans import (
    SMALL,
    RowSpec,
    fill_plan,
    plan_buffer,
    random_result,
    result_buffer,
)

ROWS = [RowSpec(0, 0, 6, 0), RowSpec(3, 9, 10, 3)]
COUNTS = {"epoch": 2, "step": 9, "rows": 2, "tokens": 7, "blocks": 5, "samples": 1}


@pytest.fixture
def frame() -> PlanFrame:
    frame = PlanFrame(plan_buffer(SMALL), SMALL, writable=True)
    fill_plan(frame, ROWS, random.Random(0), epoch=2, step=9)
    return frame


def write_copies(frame: PlanFrame) -> None:
    """Two out of one block, two into different ones out of one host block."""
    out, into = np.array([[1, 0], [1, 4]], np.int32), np.array([[2, 3], [3, 3]], np.int32)
    frame.write_copies(COUNTS["blocks"], out, into)


def test_only_the_targets_of_copies_must_differ(frame: PlanFrame) -> None:
    write_copies(frame)
    frame.seal(**COUNTS, copies_out=2, copies_in=2)
    plan = frame.read(epoch=2, step=9)
    assert plan.copies_out.tolist() == [[1, 0], [1, 4]]
    assert plan.copies_in.tolist() == [[2, 3], [3, 3]]


def test_a_frame_never_written_is_foreign() -> None:
    with pytest.raises(ForeignFrame, match="magic"):
        PlanFrame(plan_buffer(SMALL), SMALL, writable=False).read(epoch=0, step=0)


def test_a_result_is_no_plan() -> None:
    buffer = plan_buffer(SMALL)
    ResultFrame(buffer, SMALL, writable=True).write(
        random_result(random.Random(0), SMALL, 2, epoch=2, step=9)
    )
    with pytest.raises(ForeignFrame):
        PlanFrame(buffer, SMALL, writable=False).read(epoch=2, step=9)


@pytest.mark.parametrize(("epoch", "step"), [(1, 9), (3, 9), (2, 8), (2, 13)])
def test_another_epoch_or_step_is_stale(frame: PlanFrame, epoch: int, step: int) -> None:
    with pytest.raises(StaleFrame, match="found 2 step 9"):
        frame.read(epoch=epoch, step=step)


@pytest.mark.parametrize("used_bytes", [0, 56, 65, 2**20])
def test_a_length_that_the_record_does_not_have_is_torn(frame: PlanFrame, used_bytes: int) -> None:
    frame.sections["header"]["used_bytes"] = used_bytes
    with pytest.raises(TornFrame, match="used_bytes"):
        frame.read(epoch=2, step=9)


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("query_indptr", 0, 1),
        ("query_indptr", 1, 7),
        ("query_indptr", 2, 8),
        ("block_indptr", 1, 1),
        ("row_lane", 0, 5),
        ("row_lane", 0, 3),
        ("row_start", 1, -1),
        ("row_start", 1, 10),
        ("row_stop", 1, 22),
        ("row_flags", 1, 16),
        ("logprobs", 1, 22),
        ("prompt_len", 1, -1),
        ("prompt_len", 1, 22),
        ("temperature", 1, float("nan")),
        ("temperature", 1, 10001.0),
        ("top_k", 0, -1),
        ("top_p", 0, 1.0001),
        ("min_p", 0, -0.0001),
        ("repetition_penalty", 0, 0.0),
        ("repetition_penalty", 0, 2.001),
        ("presence_penalty", 0, -2.001),
        ("frequency_penalty", 1, float("inf")),
        ("stop_ids", 3, 50),
        ("stop_ids", 3, -2),
        ("token_ids", 6, -1),
        ("positions", 5, 6),
        ("kv_slots", 6, 48),
        ("block_ids", 0, 12),
        ("copies_out", 5, 12),
        ("copies_out", 6, 5),
        ("copies_out", 8, 0),
        ("copies_in", 9, -1),
        ("copies_in", 10, -1),
        ("copies_in", 11, 2),
    ],
)
def test_a_value_out_of_bounds_is_invalid_and_named(
    frame: PlanFrame, name: str, index: int, value: float
) -> None:
    write_copies(frame)
    array = frame.block_ids if name.startswith("copies_") else getattr(frame, name)
    array.reshape(-1)[index] = value
    frame.seal(**COUNTS, copies_out=2, copies_in=2)
    with pytest.raises(InvalidFrame, match="row_stop" if value == 10 else name):
        frame.read(epoch=2, step=9)


def test_samples_are_counted(frame: PlanFrame) -> None:
    frame.seal(epoch=2, step=9, rows=2, tokens=7, blocks=5, samples=2)
    with pytest.raises(InvalidFrame, match="samples"):
        frame.read(epoch=2, step=9)


@pytest.mark.parametrize(
    "counts",
    [
        {"rows": 5, "tokens": 7, "blocks": 5, "samples": 1},
        {"rows": 2, "tokens": 17, "blocks": 5, "samples": 1},
        {"rows": 2, "tokens": 7, "blocks": 25, "samples": 1},
        {"rows": 2, "tokens": 7, "blocks": 5, "samples": 3},
        {"rows": 2, "tokens": 7, "blocks": 5, "samples": 1, "copies_out": 6},
        {"rows": 2, "tokens": 7, "blocks": 5, "samples": 1, "copies_in": 6},
    ],
)
def test_a_writer_cannot_seal_more_than_fits(frame: PlanFrame, counts: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        frame.seal(epoch=2, step=9, **counts)


def test_a_reader_cannot_write(frame: PlanFrame) -> None:
    reader = PlanFrame(bytearray(frame.raw.tobytes()), SMALL, writable=False)
    for array in (reader.token_ids, reader.raw, reader.block_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def result(statuses: list[int], tokens: list[int]) -> StepResult:
    return StepResult(2, 9, np.array(statuses, np.uint8), np.array(tokens, np.int32), StepTiming())


@pytest.mark.parametrize(
    ("statuses", "tokens", "message"),
    [
        ([0, 4], [0, 0], "row_status"),
        ([0, 0], [0, 50], "row_token"),
        ([0, 0], [NO_TOKEN - 1, 0], "row_token"),
        ([0], [0], "1 rows"),
    ],
)
def test_a_result_out_of_bounds_is_invalid(
    statuses: list[int], tokens: list[int], message: str
) -> None:
    frame = ResultFrame(result_buffer(SMALL), SMALL, writable=True)
    frame.write(result(statuses, tokens))
    with pytest.raises(InvalidFrame, match=message):
        frame.read(epoch=2, step=9, rows=2)


def logprobs(chosen: float, top_id: int, top: float) -> StepLogprobs:
    """Of one row; the last alternative is this one."""
    ids, values = np.zeros((2, LOGPROBS_MAX), np.int32), np.zeros((2, LOGPROBS_MAX), np.float32)
    ids[1, -1], values[1, -1] = top_id, top
    return StepLogprobs(np.array([-1.0, chosen], np.float32), ids, values)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (logprobs(0.1, 0, 0.0), "chosen_logprob"),
        (logprobs(math.nan, 0, 0.0), "chosen_logprob"),
        (logprobs(-1.0, 50, 0.0), "top_ids"),
        (logprobs(-1.0, NO_TOKEN - 1, 0.0), "top_ids"),
        (logprobs(-1.0, 0, math.nan), "top_logprobs"),
        (logprobs(-1.0, 0, 1e-6), "top_logprobs"),
        (logprobs(-math.inf, 49, -math.inf), ""),
    ],
)
def test_log_probabilities_that_are_none_are_invalid(found: StepLogprobs, message: str) -> None:
    frame = ResultFrame(result_buffer(SMALL), SMALL, writable=True)
    frame.write(replace(result([0, 0], [1, 2]), logprobs=found))
    if not message:
        frame.read(epoch=2, step=9, rows=2)
        return
    with pytest.raises(InvalidFrame, match=message):
        frame.read(epoch=2, step=9, rows=2)


def test_a_result_is_in_use_as_far_as_somebody_asked() -> None:
    """So that nobody sums up, or copies, what nobody wants."""
    frame = ResultFrame(result_buffer(SMALL), SMALL, writable=True)
    lengths = []
    whole = logprobs(-1.0, 0, 0.0)
    chosen = replace(whole, top_ids=whole.top_ids[:, :0], top=whole.top[:, :0])
    for found in (whole, chosen, None):
        frame.write(replace(result([0, 0], [1, 2]), logprobs=found))
        lengths.append(int(frame.sections["header"]["used_bytes"]))
        frame.raw[lengths[-1] :] = 255  # nobody looks there
        frame.read(epoch=2, step=9, rows=2)
    assert sorted(set(lengths), reverse=True) == lengths
    assert lengths[0] == len(frame.raw)
    Record._seal(frame, lengths[1] + 8, epoch=2, step=9, rows=2)
    with pytest.raises(InvalidFrame, match="bytes in use"):
        frame.read(epoch=2, step=9, rows=2)


def test_a_result_of_another_step_is_stale() -> None:
    frame = ResultFrame(result_buffer(SMALL), SMALL, writable=True)
    frame.write(result([0], [1]))
    with pytest.raises(StaleFrame):
        frame.read(epoch=2, step=5, rows=1)


def test_all_of_them_are_frame_errors() -> None:
    assert all(
        issubclass(kind, FrameError) for kind in (ForeignFrame, StaleFrame, TornFrame, InvalidFrame)
    )
