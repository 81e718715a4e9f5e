"""Every policy, with a sequence in every state, when everything happens that can happen to it."""

from collections.abc import Callable

import pytest

from scheduler_svc.core.policies import BY_NAME
from svc_wire.capacity import Capacity
from svc_wire.ids import FinishReason, SeqId
from tests.support.core_drive import CoreDrive

CAPACITY = Capacity(
    num_blocks=16, block_size=4, rows_max=4, tokens_max=16, lanes=4, model_len_max=64, vocab_size=50
)
SMALLER = Capacity(
    num_blocks=10, block_size=4, rows_max=2, tokens_max=16, lanes=2, model_len_max=64, vocab_size=50
)


def waiting(drive: CoreDrive) -> SeqId:
    """The places are taken by others."""
    for _ in range(4):
        drive.add(4, 8, tenant="b")
    drive.step()
    seq_id = drive.add(6, 5, tenant="a")
    drive.step()
    assert drive.core.stats().waiting == 1
    return seq_id


def reading(drive: CoreDrive) -> SeqId:
    """Its prompt is in the batch in part."""
    seq_id = drive.add(40, 5, tenant="a")
    drive.step()
    assert drive.tokens[seq_id] == []
    assert drive.core.stats().running == 1
    return seq_id


def decoding(drive: CoreDrive) -> SeqId:
    seq_id = drive.add(6, 20, tenant="a")
    for _ in range(4):
        drive.step()
    assert drive.tokens[seq_id]
    return seq_id


def preempted(drive: CoreDrive) -> SeqId:
    """It was in the batch, and waits for memory."""
    for number in range(4):
        drive.add(8, 30, tenant="ab"[number % 2])
    while not drive.core.stats().preemptions:
        drive.step()
    (seq_id,) = [s.seq_id for s in drive.core._roster.order.waiting if s.preemptions][:1]
    return seq_id


STATES = [waiting, reading, decoding, preempted]


def nothing(drive: CoreDrive, seq_id: SeqId) -> None:
    drive.run()
    assert drive.endings[seq_id].reason is FinishReason.LENGTH


def abort(drive: CoreDrive, seq_id: SeqId) -> None:
    drive.abort(seq_id)
    drive.abort(seq_id)
    assert drive.endings[seq_id].reason is FinishReason.ABORT


def deadline(drive: CoreDrive, seq_id: SeqId) -> None:
    drive.abort(seq_id, FinishReason.DEADLINE)
    assert drive.endings[seq_id].reason is FinishReason.DEADLINE


def executor_lost(drive: CoreDrive, seq_id: SeqId) -> None:
    drive.lose()
    drive.attach(CAPACITY)
    drive.run()
    assert drive.endings[seq_id].reason is FinishReason.LENGTH


def smaller_executor(drive: CoreDrive, seq_id: SeqId) -> None:
    drive.lose()
    drive.attach(SMALLER)
    drive.run()
    # What cannot fit the new one is told so; all else goes on.
    total = len(drive._requests[seq_id].prompt) + drive._requests[seq_id].max_tokens
    fits = total <= SMALLER.sequence_len_max
    assert drive.endings[seq_id].reason is (FinishReason.LENGTH if fits else FinishReason.ERROR)


def rivals(drive: CoreDrive, seq_id: SeqId) -> None:
    """Many come that every policy but fcfs may put before it."""
    for number in range(12):
        drive.add(3, 1, tenant="c", priority=9, expected_tokens=1, deadline_s=100.0 + number)
    drive.run()
    assert drive.endings[seq_id].reason is FinishReason.LENGTH


def swaps(drive: CoreDrive, seq_id: SeqId) -> None:
    """The policy changes with every step, through all of them, in the midst of rivals."""
    for name in [*BY_NAME, *BY_NAME]:
        drive.core.set_policy(BY_NAME[name]())
        drive.add(3, 1, tenant="c", priority=9)
        drive.step()
    drive.run()
    assert drive.endings[seq_id].reason is FinishReason.LENGTH


EVENTS = [nothing, abort, deadline, executor_lost, smaller_executor, rivals, swaps]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("policy", BY_NAME)
def test_policy_state_event(
    policy: str,
    state: Callable[[CoreDrive], SeqId],
    event: Callable[[CoreDrive, SeqId], None],
) -> None:
    drive = CoreDrive(BY_NAME[policy](), CAPACITY, overtakes_max=8, step_tokens_max=16)
    seq_id = state(drive)
    event(drive, seq_id)
    drive.run()
    stats = drive.core.stats()
    assert (stats.waiting, stats.running, stats.policy_faults) == (0, 0, 0)
    assert stats.blocks_free == stats.blocks_total


@pytest.mark.parametrize("policy", BY_NAME)
def test_a_pool_of_little_more_than_one_request_makes_progress(policy: str) -> None:
    # 60 tokens are 15 blocks; the pool has 16.5 of what one request needs at its end.
    drive = CoreDrive(BY_NAME[policy](), CAPACITY, step_tokens_max=16)
    for number in range(6):
        drive.add(20, 40, tenant="ab"[number % 2], priority=number % 3)
    drive.run()
    assert drive.core.stats().preemptions > 0
    assert {ending.reason for ending in drive.endings.values()} == {FinishReason.LENGTH}


@pytest.mark.parametrize("policy", BY_NAME)
def test_nobody_is_overtaken_without_end(policy: str) -> None:
    """A long request of low rank, and an endless stream of those that go before it."""
    drive = CoreDrive(BY_NAME[policy](), CAPACITY, overtakes_max=20, step_tokens_max=16)
    for _ in range(4):
        drive.add(4, 8, tenant="b")
    long = drive.add(20, 30, tenant="b")
    for number in range(300):
        if long in drive.endings:
            break
        drive.add(3, 2, tenant="a", priority=5, expected_tokens=1, deadline_s=1e4 + number)
        drive.step()
    assert long in drive.endings, "it starves"
    assert drive.endings[long].reason is FinishReason.LENGTH
