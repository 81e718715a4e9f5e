"""What a caller gets who asks for a policy."""

from typing import ClassVar

import pytest

from scheduler_svc.core import PolicyStalled, Question, Scheduler, SchedulerConfig
from scheduler_svc.core.policies import BY_NAME, Fcfs, Key, OptionError, Options, RequestView
from scheduler_svc.policy_desk import PolicyDesk
from svc_wire.frontend_link import AskPolicy
from tests.support.core import CAPACITY, request, scheduler


class Clock:
    """Stands still but where a policy takes its time."""

    now_s: ClassVar[float] = 0.0


class SlowToMake(Fcfs):
    def configure(self, options: Options) -> None:
        Clock.now_s += 0.9
        raise PolicyStalled


class SlowToRefuse(Fcfs):
    def configure(self, options: Options) -> None:
        Clock.now_s += 0.9
        raise OptionError("no")


class SlowToOrder(Fcfs):
    def key(self, request: RequestView) -> Key:
        Clock.now_s += 0.9
        raise PolicyStalled


def test_a_policy_that_is_installed_is_put_in_force() -> None:
    told = PolicyDesk(scheduler()).answer(AskPolicy(1, "fair", {}))
    assert (told.name, told.ticket, told.error) == ("fair", 1, "")


def test_a_caller_cannot_have_a_module_imported() -> None:
    told = PolicyDesk(scheduler()).answer(AskPolicy(1, "scheduler_svc.core.policies:Fair", {}))
    assert (told.name, told.ticket) == ("fcfs", 1)
    assert "no policy" in told.error


@pytest.mark.parametrize("kind", [SlowToMake, SlowToRefuse, SlowToOrder])
def test_what_a_refused_policy_took_is_not_that_of_the_one_in_force(
    monkeypatch: pytest.MonkeyPatch, kind: type[Fcfs]
) -> None:
    monkeypatch.setitem(BY_NAME, "slow", kind)
    core = Scheduler(SchedulerConfig(), Fcfs(), Question(lambda: Clock.now_s))
    core.attach(CAPACITY, 1)
    core.add(request())
    core.question.begin_turn()
    began_s = Clock.now_s
    told = PolicyDesk(core).answer(AskPolicy(1, "slow", {}))
    assert told.name == "fcfs"
    assert told.error
    assert Clock.now_s > began_s
    assert (core.question.took_s, core.question.turn_took_s) == (0.0, 0.0)


def test_a_policy_whose_name_cannot_be_sent_is_told_of_by_another() -> None:
    class Nameless(Fcfs):
        name: ClassVar[str] = "\udc80"

    told = PolicyDesk(scheduler(Nameless())).answer(AskPolicy(1, "", {}))
    assert "Nameless" in told.name
    told.name.encode()


def test_a_policy_that_changes_its_name_is_told_of_by_the_first() -> None:
    class Moody(Fcfs):
        name: ClassVar[str] = "moody"

    desk = PolicyDesk(scheduler(Moody()))
    Moody.name = "\udc80"
    assert desk.answer(AskPolicy(1, "", {})).name == "moody"
    assert desk.answer(AskPolicy(2, "no such policy", {})).name == "moody"
