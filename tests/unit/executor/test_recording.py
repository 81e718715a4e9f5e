"""A record of steps with block copies is run again like any other."""

import errno
import io
import os
import random
from pathlib import Path

import numpy as np
import pytest

from executor_svc.hash_runner import HashRunner
from executor_svc.recording import PLAN, Record, RecordedRunner, RecordError
from executor_svc.replay import Replay
from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame
from svc_wire.ids import NO_TOKEN
from svc_wire.layout import plan_dtype
from tests.support.planner import Job, Planner

CAPACITY = Capacity(
    num_blocks=20, block_size=4, rows_max=4, tokens_max=16, lanes=5, model_len_max=40,
    vocab_size=257, host_blocks=12,
)  # fmt: skip


@pytest.mark.parametrize("redacted", [False, True])
def test_copies_are_in_the_record(tmp_path: Path, redacted: bool) -> None:
    rng, path = random.Random(3), tmp_path / "record"
    jobs = [Job([rng.randrange(257) for _ in range(12)], 20) for _ in range(6)]
    recorded = RecordedRunner(HashRunner(CAPACITY), path, redacted=redacted)
    planner = Planner(recorded, jobs, depth=2, preempt_chance=0.2, swap_chance=1.0)
    planner.run()
    recorded.close()
    assert planner.swaps > 3
    record = Record(path)
    assert record.head.capacity == CAPACITY
    replay = Replay(record, HashRunner(CAPACITY), compares=not redacted)
    replay.run()
    assert replay.steps == sum(kind == PLAN for kind, _ in record.entries())


def test_a_redacted_record_names_no_token_at_all(tmp_path: Path) -> None:
    """Neither those of prompts nor those at which somebody wished to stop."""
    jobs = [Job([7] * 12, 9, stop_ids=(5, 6)), Job([8] * 3, 9)]
    recorded = RecordedRunner(HashRunner(CAPACITY), tmp_path / "record", redacted=True)
    Planner(recorded, jobs).run()
    recorded.close()
    frame = PlanFrame(bytearray(plan_dtype(CAPACITY).itemsize), CAPACITY, writable=True)
    plans = [data for kind, data in Record(tmp_path / "record").entries() if kind == PLAN]
    assert len(plans) > 9
    for data in plans:
        frame.raw[: len(data)] = np.frombuffer(data, np.uint8)
        assert not frame.token_ids.any()
        assert (frame.stop_ids == NO_TOKEN).all()


def test_a_disk_that_gets_full_ends_the_record_and_no_step(tmp_path: Path) -> None:
    jobs = [Job([7] * 12, 9), Job([8] * 3, 9)]
    expected = Planner(HashRunner(CAPACITY), jobs).run()
    recorded = RecordedRunner(HashRunner(CAPACITY), tmp_path / "record")
    assert recorded._file is not None
    recorded._file.close()
    recorded._file = io.BufferedWriter(io.FileIO("/dev/full", "w"))
    assert Planner(recorded, jobs).run() == expected
    assert recorded._file is None
    recorded.close()


def test_a_later_life_goes_on_where_its_record_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    jobs, path = [Job([7] * 12, 9)], tmp_path / "record"
    monkeypatch.setattr(Path, "open", no_space)
    with pytest.raises(RecordError, match="No space left"):
        RecordedRunner(HashRunner(CAPACITY), path)
    os.close(os.open(path, os.O_CREAT))
    later = RecordedRunner(HashRunner(CAPACITY), path)
    assert Planner(later, jobs).run() == Planner(HashRunner(CAPACITY), jobs).run()
    later.close()
