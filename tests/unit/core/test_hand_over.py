"""A scheduler that leaves as ordered, and what the next one makes of it."""

import numpy as np
import pytest

from scheduler_svc.core import KvIndex
from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.policies import Fcfs
from svc_wire.capacity import Capacity
from tests.support.core_drive import CoreDrive

CAPACITY = Capacity(
    num_blocks=32, block_size=4, rows_max=4, tokens_max=64, lanes=4, model_len_max=60, vocab_size=90
)


def index_of(*entries: tuple[int, bytes]) -> KvIndex:
    return KvIndex(np.array([b for b, _ in entries], np.int32), tuple(k for _, k in entries))


def test_running_sequences_go_on_from_their_full_blocks() -> None:
    drive = CoreDrive(Fcfs(), CAPACITY, depth=1)
    lengths = [5, 11, 16]
    first, *_ = [drive.add(length, 20) for length in lengths]
    drive.run_steps(6)
    output = len(drive.tokens[first]) + 1  # one more is in flight
    kv = drive.hand_over()
    # The KV of the last token is never written yet.
    full = [(length + output - 1) // 4 for length in lengths]
    assert len(kv) == sum(full)
    drive.step()
    assert drive.core.stats().cache_hit_tokens == 4 * sum(full)
    drive.run()


def test_what_was_cached_before_is_evicted_first() -> None:
    pool = BlockPool(4)
    pool.adopt(index_of((2, b"old"), (0, b"new")))
    pool.check([])
    assert pool.available == 4
    assert pool.find([b"new", b"old"]) == [0, 2]
    assert set(pool.take(2)) == {1, 3}
    assert pool.take(1) == [2]
    assert pool.find([b"old"]) == []
    assert pool.index().keys == (b"new",)


def test_without_a_prefix_cache_nothing_is_handed_over() -> None:
    drive = CoreDrive(Fcfs(), CAPACITY, depth=0, prefix_cache=False)
    drive.add(9, 20)
    drive.run_steps(4)
    assert len(drive.hand_over()) == 0
    drive.run()
    assert drive.core.stats().cache_hit_tokens == 0


def test_a_successor_without_a_prefix_cache_takes_nothing() -> None:
    drive = CoreDrive(Fcfs(), CAPACITY, prefix_cache=False)
    drive.lose()
    drive.core.attach(CAPACITY, 9, index_of((2, b"old")))
    assert drive.core.stats().blocks_free == 32
    drive.core.check()


def test_blocks_of_steps_in_flight_cannot_be_vouched_for() -> None:
    drive = CoreDrive(Fcfs(), CAPACITY, depth=1)
    drive.add(9, 20)
    drive.step()
    with pytest.raises(AssertionError, match="not written yet"):
        drive.core.hand_over()


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ([(1, b"a"), (1, b"b")], "twice"),
        ([(1, b"a"), (2, b"a")], "twice"),
        ([(4, b"a")], "none"),
    ],
)
def test_an_index_is_of_this_memory(entries: list[tuple[int, bytes]], wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        BlockPool(4).adopt(index_of(*entries))


def test_only_a_new_pool_adopts() -> None:
    pool = BlockPool(4)
    pool.take(1)
    with pytest.raises(AssertionError, match="in use"):
        pool.adopt(index_of((2, b"a")))
