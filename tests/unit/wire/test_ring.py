"""The shared file within one process; tests/process/test_ring.py has it across real ones."""

import errno
import os
import random
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from svc_wire.errors import RingError, RingTooLarge
from svc_wire.ring import (
    DEPTH_MAX,
    FRAMES,
    ExecutorRing,
    SchedulerRing,
    ring_bytes,
    sweep_rings,
    unword,
    word,
)
from tests.support.plans import SMALL, RowSpec, fill_plan, random_result


@pytest.fixture
def ends(tmp_path: Path) -> tuple[SchedulerRing, ExecutorRing]:
    executor = ExecutorRing.create(tmp_path, SMALL)
    return SchedulerRing.attach(executor.path, SMALL), executor


@pytest.mark.parametrize(("epoch", "step"), [(0, 0), (1, 1), (2**24 - 1, 2**40 - 1)])
def test_a_word_holds_epoch_and_step(epoch: int, step: int) -> None:
    assert unword(word(epoch, step)) == (epoch, step)
    assert word(epoch, step) < 2**64


@pytest.mark.parametrize(("epoch", "step"), [(2**24, 0), (0, 2**40), (-1, 0), (0, -1)])
def test_a_word_takes_no_more(epoch: int, step: int) -> None:
    with pytest.raises(AssertionError):
        word(epoch, step)


def test_a_later_word_is_larger() -> None:
    assert word(1, 2**40 - 1) < word(2, 0) < word(2, 1)


def test_a_plan_goes_over_and_a_result_comes_back(
    ends: tuple[SchedulerRing, ExecutorRing],
) -> None:
    scheduler, executor = ends
    assert executor.last_plan() == scheduler.last_result() == (0, 0)
    for step in range(1, 3 * FRAMES):
        rows = [RowSpec(step % SMALL.lanes, step, step + 1, 1)]
        fill_plan(scheduler.plan_frame(step), rows, random.Random(step), epoch=5, step=step)
        assert scheduler.publish_plan(5, step) is False
        assert executor.last_plan() == (5, step)
        plan = executor.plan_frame(step).read(epoch=5, step=step)
        assert plan.row_start.tolist() == [step]
        result = random_result(random.Random(step), SMALL, 1, epoch=5, step=step)
        executor.result_frame(step).write(result)
        assert executor.publish_result(5, step) is False
        assert scheduler.last_result() == (5, step)
        found = scheduler.result_frame(step).read(epoch=5, step=step, rows=1)
        assert found.row_token.tolist() == result.row_token.tolist()


def test_steps_in_flight_have_frames_of_their_own(
    ends: tuple[SchedulerRing, ExecutorRing],
) -> None:
    scheduler, _ = ends
    frames = [scheduler.plan_frame(step) for step in range(7, 7 + DEPTH_MAX + 1)]
    assert len({id(frame) for frame in frames}) == DEPTH_MAX + 1
    assert scheduler.plan_frame(7) is scheduler.plan_frame(7 + FRAMES)


def test_the_doorbell_is_asked_for_only_by_who_sleeps(
    ends: tuple[SchedulerRing, ExecutorRing],
) -> None:
    scheduler, executor = ends
    executor.set_waiting(True)
    assert scheduler.publish_plan(1, 1) is True
    executor.set_waiting(False)
    assert scheduler.publish_plan(1, 2) is False
    scheduler.set_waiting(True)
    assert executor.publish_result(1, 1) is True
    scheduler.set_waiting(False)
    assert executor.publish_result(1, 2) is False


def test_who_falls_asleep_during_a_hand_over_is_rung_for(
    ends: tuple[SchedulerRing, ExecutorRing],
) -> None:
    """It has looked just before the word was written, and blocks as soon as it has said so."""
    scheduler, executor = ends
    scheduler._plan_word = FallsAsleep(executor)  # type: ignore[assignment]
    assert scheduler.publish_plan(1, 1) is True
    executor._result_word = FallsAsleep(scheduler)  # type: ignore[assignment]
    assert executor.publish_result(1, 1) is True


class FallsAsleep:
    """A word whose reader does so when it is written."""

    def __init__(self, reader: SchedulerRing | ExecutorRing) -> None:
        self._reader = reader

    def __setattr__(self, name: str, value: object) -> None:
        if name == "value":
            self._reader.set_waiting(True)
        object.__setattr__(self, name, value)


def test_each_end_can_write_its_own_frames_only(ends: tuple[SchedulerRing, ExecutorRing]) -> None:
    scheduler, executor = ends
    assert scheduler.plan_frame(1).raw.flags.writeable
    assert executor.result_frame(1).raw.flags.writeable
    assert not scheduler.result_frame(1).raw.flags.writeable
    assert not executor.plan_frame(1).raw.flags.writeable


def test_the_file_is_private_complete_and_named_after_its_owner(
    ends: tuple[SchedulerRing, ExecutorRing],
) -> None:
    path = ends[1].path
    found = path.stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_size == ring_bytes(SMALL)
    assert found.st_blocks * 512 >= ring_bytes(SMALL)  # allocated, so that no touch can fail
    assert path.name.startswith(f"ring-{os.getpid()}-")


def test_a_ring_goes_with_its_owner(ends: tuple[SchedulerRing, ExecutorRing]) -> None:
    scheduler, executor = ends
    executor.unlink()
    executor.unlink()
    assert not executor.path.exists()
    assert scheduler.publish_plan(1, 1) is False  # the mapping outlives the name


def test_two_rings_of_one_process_do_not_meet(tmp_path: Path) -> None:
    first, second = (ExecutorRing.create(tmp_path, SMALL) for _ in range(2))
    assert first.path != second.path
    SchedulerRing.attach(first.path, SMALL).publish_plan(1, 1)
    assert second.last_plan() == (0, 0)


def test_a_ring_is_swept_once_nobody_owns_it(tmp_path: Path) -> None:
    ring = ExecutorRing.create(tmp_path, SMALL)
    path = ring.path
    reader = SchedulerRing.attach(path, SMALL)
    assert sweep_rings(tmp_path) == []
    del ring
    assert sweep_rings(tmp_path) == [path]
    assert not path.exists()
    assert reader.last_result() == (0, 0)


def test_sweeping_takes_rings_only(tmp_path: Path) -> None:
    (tmp_path / "ring-1-half").write_bytes(b"made by one that died at once")
    (tmp_path / "scheduler.sock").write_text("")
    (tmp_path / "ring-2-folder").mkdir()
    (tmp_path / "ring-3-link").symlink_to(tmp_path / "scheduler.sock")
    os.mkfifo(tmp_path / "ring-4-fifo")
    assert [path.name for path in sweep_rings(tmp_path)] == ["ring-1-half"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ring-2-folder",
        "ring-3-link",
        "ring-4-fifo",
        "scheduler.sock",
    ]


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "link"])
def test_what_is_no_file_is_not_attached(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "ring-1-x"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(ExecutorRing.create(tmp_path, SMALL).path)
    with pytest.raises(RingError, match="cannot open"):
        SchedulerRing.attach(path, SMALL)


def test_a_foreign_file_is_not_attached(tmp_path: Path) -> None:
    path = tmp_path / "ring-1-x"
    for content in (b"", b"TWOSTRK\n", os.urandom(ring_bytes(SMALL))):
        path.write_bytes(content)
        with pytest.raises(RingError, match="not a frame ring"):
            SchedulerRing.attach(path, SMALL)


def test_a_ring_of_another_capacity_is_not_attached(tmp_path: Path) -> None:
    ring = ExecutorRing.create(tmp_path, SMALL)
    with pytest.raises(RingError, match="not a frame ring"):
        SchedulerRing.attach(ring.path, msgspec.structs.replace(SMALL, tokens_max=17))


@pytest.mark.parametrize("more", [-4096, 4096])
def test_a_ring_of_another_size_is_not_attached(tmp_path: Path, more: int) -> None:
    ring = ExecutorRing.create(tmp_path, SMALL)
    os.truncate(ring.path, ring_bytes(SMALL) + more)
    with pytest.raises(RingError, match=f"expected {ring_bytes(SMALL)}"):
        SchedulerRing.attach(ring.path, SMALL)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(RingError, match="nowhere"):
        ExecutorRing.create(tmp_path / "nowhere", SMALL)


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (errno.ENOSPC, RingTooLarge, "--run-dir"),
        (errno.EDQUOT, RingTooLarge, "--rows-max"),
        (errno.EIO, RingError, "cannot make"),
    ],
)
def test_a_ring_that_cannot_be_allocated_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    kind: type[RingError],
    message: str,
) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(kind, match=message):
        ExecutorRing.create(tmp_path, SMALL)
    assert list(tmp_path.iterdir()) == []


def test_words_pass_between_threads_in_order(ends: tuple[SchedulerRing, ExecutorRing]) -> None:
    """A smoke test of the hand-over: the payload of a seen word is never older than the word."""
    scheduler, executor = ends
    steps = 300

    def write() -> None:
        for step in range(1, steps + 1):
            while executor.last_result()[1] < step - DEPTH_MAX - 1:
                pass
            rows = [RowSpec(0, step % SMALL.model_len_max, step % SMALL.model_len_max + 1, 0)]
            fill_plan(scheduler.plan_frame(step), rows, random.Random(step), epoch=1, step=step)
            scheduler.publish_plan(1, step)

    writer = threading.Thread(target=write)
    writer.start()
    for step in range(1, steps + 1):
        while executor.last_plan()[1] < step:
            pass
        plan = executor.plan_frame(step).read(epoch=1, step=step)
        assert plan.row_start[0] == step % SMALL.model_len_max
        executor.publish_result(1, step)
    writer.join()
