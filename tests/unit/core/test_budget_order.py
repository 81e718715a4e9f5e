"""The step's budget goes in the policy's order, over prompts being read and requests that wait."""

import pytest

from scheduler_svc.core.policies import BY_NAME
from svc_wire.capacity import Capacity
from svc_wire.ids import SeqId
from tests.support.core_drive import CoreDrive

CAPACITY = Capacity(
    num_blocks=64, block_size=4, rows_max=4, tokens_max=16, lanes=4, model_len_max=200,
    vocab_size=50,
)  # fmt: skip


def read_tokens(drive: CoreDrive, seq_id: SeqId) -> int:
    """How much of its prompt is planned; 0: it waits."""
    batch = drive.core._roster.batch
    assert batch is not None
    lanes = [s.lane for s in batch.running if s.seq_id == seq_id]
    return int(batch.table.planned[lanes[0]]) if lanes else 0


def long_and_newcomer(policy: str) -> tuple[CoreDrive, SeqId, SeqId]:
    """A prompt of 100 tokens that is being read, and then a short request of somebody else."""
    drive = CoreDrive(BY_NAME[policy](), CAPACITY, depth=0, step_tokens_max=16)
    long = drive.add(100, 20, tenant="a", deadline_s=1e6)
    drive.step()
    assert read_tokens(drive, long) == 16
    newcomer = drive.add(6, 2, tenant="b", priority=1, deadline_s=1e5)
    drive.step()
    return drive, long, newcomer


@pytest.mark.parametrize("policy", ["fcfs"])
def test_who_came_first_is_read_to_the_end_first(policy: str) -> None:
    drive, long, newcomer = long_and_newcomer(policy)
    assert read_tokens(drive, long) == 32
    assert read_tokens(drive, newcomer) == 0
    drive.run()


@pytest.mark.parametrize("policy", ["priority", "sjf", "deadline"])
def test_a_newcomer_that_goes_first_is_read_first(policy: str) -> None:
    drive, long, newcomer = long_and_newcomer(policy)
    assert read_tokens(drive, newcomer) == 6
    assert read_tokens(drive, long) == 16 + 16 - 6
    drive.run()


def test_two_tenants_that_read_share_the_budget() -> None:
    drive = CoreDrive(BY_NAME["fair"](), CAPACITY, depth=0, step_tokens_max=16)
    one, other = (drive.add(90, 2, tenant=tenant) for tenant in "ab")
    for _ in range(10):
        drive.step()
        assert abs(read_tokens(drive, one) - read_tokens(drive, other)) <= 16
    drive.run()
