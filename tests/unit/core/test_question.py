"""A stall ends a policy's word wherever it strikes; what a policy catches by itself is its own."""

from typing import ClassVar

import pytest

from scheduler_svc.core import PolicyFault, PolicyStalled, Question
from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.guard import Guard
from scheduler_svc.core.policies import Fcfs, GroupView, Key, RequestView
from scheduler_svc.core.question import ANSWER_S_MAX
from svc_wire.ids import RowStatus
from tests.support.core import CAPACITY, plan, request, result, scheduler
from tests.support.core_drive import CoreDrive


class Stalling(Fcfs):
    """As a watchdog's signal would have it: the stall comes from within."""

    name: ClassVar[str] = "stalling"

    def key(self, request: RequestView) -> Key:
        raise PolicyStalled


class Curious(Fcfs):
    """Looks into the prefix cache."""

    name: ClassVar[str] = "curious"

    def group(self, request: RequestView) -> str:
        return str(request.arrival)

    def rank(self, group: GroupView) -> Key:
        return (-group.count_cached(),)


def test_a_question_is_open_while_it_is_answered() -> None:
    question = Question()
    assert question.put(lambda: question.is_open)
    assert not question.is_open
    with pytest.raises(ZeroDivisionError):
        question.put(lambda: 1 // 0)
    assert not question.is_open


def test_what_answers_take_is_added_up_turn_by_turn() -> None:
    now = iter([1.0, 1.5, 10.0, 10.5, 20.0, 20.25, 30.0, 30.25, 30.75])
    question = Question(lambda: next(now))
    question.begin_turn()
    question.put(lambda: None)
    with pytest.raises(ZeroDivisionError):
        question.put(lambda: 1 // 0)
    assert (question.turn, question.took_s, question.turn_took_s) == (1, 1.0, 1.0)
    question.begin_turn()
    assert question.turn_took_s == 0
    question.put(lambda: None)
    assert question.put(lambda: question.turn_took_s) == 0.25 + 0.25  # so far
    assert (question.turn, question.took_s, question.turn_took_s) == (2, 2.0, 1.0)


def test_a_process_that_was_stopped_in_an_answer_did_not_answer_all_that_time() -> None:
    now = iter([1.0, 60.0])
    question = Question(lambda: next(now))
    question.put(lambda: None)
    assert question.took_s == ANSWER_S_MAX


def test_a_stall_is_a_fault() -> None:
    question = Question()
    guard = Guard(Stalling(), question)
    view = RequestView(arrival=5, priority=0, tenant="", prompt_tokens=1, max_tokens=1)
    assert guard.key(view) == (5,)
    assert guard.fault == "stalling: key did not answer in time"
    assert not question.is_open


def test_a_stalling_policy_is_replaced_or_not_put_in_force() -> None:
    drive = CoreDrive(Stalling(), CAPACITY)
    drive.add(5, 3)
    assert drive.core.policy.name == "fcfs"
    with pytest.raises(PolicyFault, match="did not answer"):
        drive.core.set_policy(Stalling())
    assert drive.core.policy.name == "fcfs"
    drive.run()


def test_what_can_be_broken_off_changes_nothing_in_the_prefix_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = scheduler(Curious(), running_max=2)
    register, registered = BlockPool.register, []

    def watched(pool: BlockPool, block: int, key: bytes) -> None:
        registered.append(core.question.is_open)
        register(pool, block, key)

    monkeypatch.setattr(BlockPool, "register", watched)
    core.add(request(prompt_len=9, max_tokens=2))
    assert plan(core) is not None  # two blocks are full, which nobody needs to know yet
    core.commit(result(1, (RowStatus.OK, 1)))
    core.add(request(prompt_len=5, max_tokens=1))
    core.add(request(prompt_len=9, max_tokens=1))
    assert plan(core) is not None  # who of them is next?
    assert registered == [False, False]
    assert core.stats().cache_hit_tokens == 8
