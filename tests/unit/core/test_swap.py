"""KV that waits in host memory: who holds which host block, and when copying is worth it."""

import msgspec
import pytest

from scheduler_svc.core.policies import Fcfs
from scheduler_svc.core.swap import NO_COPIES, Swap
from svc_wire.capacity import Capacity
from svc_wire.frontend_link import Sampling
from svc_wire.ids import FinishReason, RowStatus, SeqId
from svc_wire.ring import FRAMES
from tests.support.core_drive import CoreDrive

CAPACITY = Capacity(
    num_blocks=12, block_size=4, rows_max=4, tokens_max=32, lanes=4, model_len_max=40,
    vocab_size=90, host_blocks=8, block_copy_ns=1_000_000,
)  # fmt: skip
TOKEN_S = 1e-3  # as long as copying a block of four tokens
A, B = SeqId(1), SeqId(2)


def pairs(*wanted: tuple[int, int]) -> list[list[int]]:
    return [list(pair) for pair in wanted]


@pytest.fixture
def swap() -> Swap:
    return Swap(CAPACITY)


def test_out_then_in(swap: Swap) -> None:
    assert swap.out(A, [5, 3, 9], 0, 10, TOKEN_S)
    swap.check([A])
    out, into = swap.take_copies()
    assert (out.tolist(), into.tolist()) == (pairs((5, 0), (3, 1), (9, 2)), [])
    assert swap.free == 5
    assert swap.into(A, [1, 2, 4, 6], 0) == 10
    out, into = swap.take_copies()
    assert (out.tolist(), into.tolist()) == ([], pairs((1, 0), (2, 1), (4, 2)))
    assert swap.free == 8
    swap.check([])


def test_a_plan_without_copies_costs_nothing(swap: Swap) -> None:
    assert swap.take_copies() is NO_COPIES


def test_who_was_never_swapped_out_has_nothing(swap: Swap) -> None:
    assert swap.into(A, [1, 2], 1) == 0
    assert swap.take_copies() is NO_COPIES


def test_host_blocks_that_are_read_are_free_with_the_plan_and_not_before(swap: Swap) -> None:
    assert swap.out(A, list(range(8)), 0, 32, TOKEN_S)
    swap.take_copies()
    assert swap.into(A, list(range(8)), 0) == 32
    assert swap.free == 0
    assert not swap.out(B, [9], 0, 4, TOKEN_S)
    swap.take_copies()
    assert swap.free == 8


@pytest.mark.parametrize(
    ("tokens", "shared", "token_s", "is_worth"),
    [
        (10, 0, TOKEN_S, True),
        (10, 0, 0.61 * TOKEN_S, True),
        (10, 0, 0.60 * TOKEN_S, False),  # three blocks there and back are as long
        (10, 0, 0.0, False),  # nothing is known yet
        (10, 2, TOKEN_S, False),  # two tokens of its own are not worth a block
        (11, 2, TOKEN_S, True),
        (8, 2, TOKEN_S, False),  # others hold all of it
        (0, 0, TOKEN_S, False),
    ],
)
def test_what_is_cheaper_is_done(
    swap: Swap, tokens: int, shared: int, token_s: float, is_worth: bool
) -> None:
    assert swap.out(A, [5, 3, 9], shared, tokens, token_s) == is_worth
    assert swap.free == 8 - (3 - shared if is_worth else 0)


def test_without_host_blocks_nothing_is_swapped() -> None:
    swap = Swap(msgspec.structs.replace(CAPACITY, host_blocks=0))
    assert not swap.out(A, [5, 3, 9], 0, 10, TOKEN_S)
    swap.check([])


def test_where_memory_is_short_the_beginning_is_kept(swap: Swap) -> None:
    assert swap.out(A, [1, 2, 3, 4, 5], 0, 20, TOKEN_S)
    assert swap.out(B, [6, 7, 8, 9], 0, 15, TOKEN_S)
    assert swap.free == 0
    swap.take_copies()
    assert swap.into(B, [10, 11, 1, 2], 0) == 12
    assert swap.take_copies()[1].tolist() == pairs((10, 5), (11, 6), (1, 7))


def test_blocks_that_others_hold_are_not_copied(swap: Swap) -> None:
    assert swap.out(A, [5, 3, 9], 1, 11, TOKEN_S)
    assert swap.take_copies()[0].tolist() == pairs((3, 0), (9, 1))
    assert swap.into(A, [5, 1, 2], 1) == 11
    assert swap.take_copies()[1].tolist() == pairs((1, 0), (2, 1))


def test_blocks_that_are_found_meanwhile_are_not_copied_back(swap: Swap) -> None:
    swap.out(A, [5, 3, 9], 0, 10, TOKEN_S)
    swap.take_copies()
    assert swap.into(A, [5, 3, 1], 2) == 10
    assert swap.take_copies()[1].tolist() == pairs((1, 2))
    assert swap.free == 8


@pytest.mark.parametrize("hit", [0, 3])
def test_kv_without_its_beginning_or_found_as_a_whole_is_dropped(swap: Swap, hit: int) -> None:
    swap.out(A, [5, 3, 9], 1, 12, TOKEN_S)
    assert swap.into(A, [1, 2, 4, 6], hit) == 0
    assert swap.take_copies() is NO_COPIES
    assert swap.free == 8


def test_what_is_dropped_before_a_plan_was_made_is_not_copied(swap: Swap) -> None:
    swap.out(A, [5, 3, 9], 0, 10, TOKEN_S)
    swap.drop(A)
    swap.drop(B)
    assert swap.take_copies() is NO_COPIES
    swap.check([])


def test_copies_in_are_known_by_their_time(swap: Swap) -> None:
    swap.out(A, [5, 3, 9], 0, 10, TOKEN_S)
    swap.into(A, [5, 3, 9], 0)
    assert swap.in_s == pytest.approx(3e-3)
    swap.take_copies()
    assert swap.in_s == 0


def test_the_books_must_agree(swap: Swap) -> None:
    swap.out(A, [5, 3, 9], 0, 10, TOKEN_S)
    with pytest.raises(AssertionError, match="does not wait"):
        swap.check([B])
    swap.into(A, [5, 3, 9], 0)
    with pytest.raises(AssertionError, match="without its KV"):
        swap.check([])


# -- the same in a core that serves ----------------------------------------------------------------


def two_that_need_more_than_there_is(depth: int = 0, **changes: int) -> CoreDrive:
    """A and B, which hold the whole pool before they are done. Decoding teaches the pace first."""
    capacity = msgspec.structs.replace(CAPACITY, **changes)
    drive = CoreDrive(Fcfs(), capacity, depth=depth, prefix_cache=False)
    drive.add(2, 3)
    drive.run_steps(2)
    for _ in "AB":
        drive.add(15, 20)
    return drive


def until_preempted(drive: CoreDrive) -> SeqId:
    """Runs until somebody is pre-empted; who that is."""
    while not drive.core.stats().preemptions:
        drive.step()
    waiting = drive.core._roster.order.waiting.head
    assert waiting is not None
    return waiting.seq_id


def host_blocks_free(drive: CoreDrive) -> int:
    batch = drive.core._roster.batch
    assert batch is not None
    return batch.swap.free


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize(
    ("changes", "swaps"),
    [
        ({}, 1),
        ({"block_copy_ns": 0}, 1),
        ({"host_blocks": 2}, 1),
        ({"block_copy_ns": 2_100_000}, 0),
        ({"host_blocks": 0}, 0),
    ],
)
def test_tokens_are_the_same_either_way(depth: int, changes: dict[str, int], swaps: int) -> None:
    drive = two_that_need_more_than_there_is(depth, **changes)
    drive.run()
    stats = drive.core.stats()
    assert stats.preemptions == 1
    assert (stats.swaps_out, stats.swaps_in) == (swaps, swaps)
    assert host_blocks_free(drive) == changes.get("host_blocks", 8)


def test_a_sequence_goes_on_where_it_was() -> None:
    drive = two_that_need_more_than_there_is()
    preempted = until_preempted(drive)
    while not (sequence := drive.core._roster.sequences[preempted]).admissions > 1:
        known = len(sequence.tokens)
        drive.step()
    planned = drive.core._roster.batch
    assert planned is not None
    assert int(planned.table.planned[sequence.lane]) >= known
    steps = drive.run()
    assert steps <= 20


def test_whose_history_counts_is_computed_again() -> None:
    drive = two_that_need_more_than_there_is()
    # Greedy tokens of the hash model do not depend on penalties.
    sequence = list(drive.core._roster.sequences.values())[-1]
    object.__setattr__(sequence.request, "sampling", Sampling(presence_penalty=1.0))
    until_preempted(drive)
    assert drive.core.stats().swaps_out == 0


def test_who_ends_while_it_waits_gives_its_host_blocks_back() -> None:
    drive = two_that_need_more_than_there_is()
    preempted = until_preempted(drive)
    assert host_blocks_free(drive) < 8
    drive.abort(preempted, FinishReason.DEADLINE)
    assert host_blocks_free(drive) == 8
    drive.run()


def test_host_memory_goes_with_the_executor() -> None:
    drive = two_that_need_more_than_there_is()
    until_preempted(drive)
    drive.lose()
    drive.attach(CAPACITY)
    assert host_blocks_free(drive) == 8
    drive.run()
    assert drive.core.stats().swaps_in == 0


def test_what_a_row_that_failed_has_written_is_not_kept() -> None:
    drive = two_that_need_more_than_there_is(depth=2)
    preempted = until_preempted(drive)
    batch = drive.core._roster.batch
    assert batch is not None
    assert host_blocks_free(drive) < 8
    result = drive._executor.execute(batch.in_flight[0].step)
    result.row_status[:] = RowStatus.ERROR
    output = drive.core.commit(result)
    assert (preempted, FinishReason.ERROR) in [(e.seq_id, e.reason) for e in output.endings]
    assert host_blocks_free(drive) == 8
    drive.core.check()


def row_lengths(drive: CoreDrive, step: int) -> list[int]:
    frame = drive._executor.plans[step % FRAMES]
    rows = int(frame.sections["header"]["rows"])
    return sorted((frame.row_stop[:rows] - frame.row_start[:rows]).tolist())


@pytest.mark.parametrize(("budget", "copy_ms", "piece"), [(16, 0, 15), (16, 1, 10), (9, 2, 1)])
def test_copies_in_take_their_share_of_the_budget(budget: int, copy_ms: int, piece: int) -> None:
    """Somebody reads a long prompt beside who comes back with five blocks; a token takes 1 ms."""
    capacity = msgspec.structs.replace(CAPACITY, block_copy_ns=copy_ms * 1_000_000, num_blocks=40)
    drive = CoreDrive(Fcfs(), capacity, depth=0, prefix_cache=False, step_tokens_max=budget)
    drive.add(1, 2)
    drive.run_steps(2)
    swapped = drive.core._roster.sequences[drive.add(17, 9)]
    drive.run_steps(2)
    drive.add(38, 1)
    drive.step()
    batch = drive.core._roster.batch
    assert batch is not None
    drive.core._roster.preempt(batch, swapped, prompt_token_s=1.0)
    drive.step()
    assert drive.core.stats().swaps_in == 1
    frame = drive._executor.plans[batch.step % FRAMES]
    assert (frame.row_stop[:2] - frame.row_start[:2]).tolist() == [1, piece]
    drive.run()
