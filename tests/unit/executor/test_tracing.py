"""Every completed step leaves one record, whatever way its result was fetched."""

from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from executor_svc.errors import TraceError
from executor_svc.hash_runner import HashRunner
from executor_svc.tracing import STEP, TracedRunner
from svc_wire.capacity import Capacity
from tests.support.planner import Job, Planner

CAPACITY = Capacity(
    num_blocks=32, block_size=4, rows_max=4, tokens_max=16, lanes=8, model_len_max=64,
    vocab_size=257,
)  # fmt: skip


def test_records_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    runner = TracedRunner(HashRunner(CAPACITY, eos_ids=(256,), name="hash"), path)
    jobs = [Job([5, 6, 7, 8, 9], 6), Job([7], 9)]
    traced = Planner(runner, jobs, depth=1).run()
    runner.close()

    plain = HashRunner(CAPACITY, eos_ids=(256,), name="hash")
    assert traced == Planner(plain, jobs, depth=1).run(), "tracing changes nothing"
    plain.close()
    records = np.fromfile(path, STEP)
    assert records["step"].tolist() == list(range(1, len(records) + 1))
    # The last token of each is sampled and never an input.
    assert records["tokens"].sum() == (5 + 6 - 1) + (1 + 9 - 1)
    assert (records["rows"] <= records["tokens"]).all()
    assert (records["written_ns"] <= records["completed_ns"]).all()


def test_a_file_that_cannot_be_opened_is_said_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "none" / "trace"
    runner = HashRunner(CAPACITY, eos_ids=(256,), name="hash")
    with pytest.raises(TraceError, match=f"cannot write the trace {path}: No such file"):
        TracedRunner(runner, path)
    runner.close()


def test_a_full_disk_ends_the_trace_and_not_the_steps() -> None:
    runner = TracedRunner(HashRunner(CAPACITY, eos_ids=(256,), name="hash"), Path("/dev/full"))
    jobs = [Job([5, 6, 7, 8, 9], 6), Job([7], 9)]
    with capture_logs() as said:
        traced = Planner(runner, jobs, depth=1).run()
    runner.close()
    plain = HashRunner(CAPACITY, eos_ids=(256,), name="hash")
    assert traced == Planner(plain, jobs, depth=1).run()
    plain.close()
    assert [(line["event"], line["error"]) for line in said] == [
        ("the trace ends here", "No space left on device")
    ]
