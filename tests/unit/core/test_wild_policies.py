"""Whatever a policy answers or raises: fcfs takes its place, a line says why, nobody is hurt."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn

import pytest

from scheduler_svc.core import PolicyFault, Scheduler
from scheduler_svc.core.answers import REFUSAL_MAX, SHOWN_MAX
from scheduler_svc.core.policies import Fcfs, GroupView, Key, LoadView, RequestView, RunningView
from scheduler_svc.core.types import Rejection
from tests.support.core import CAPACITY, plan, request, scheduler
from tests.support.core_drive import CoreDrive


class Unspeakable(Exception):
    """Cannot even be shown."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("no words")

    __str__ = __repr__


class Mumbling(Exception):
    """Is shown as what cannot be written."""

    def __repr__(self) -> str:
        return "\udc80\nmumbled"


class Ender(BaseException):
    """No Exception."""


class TouchyTuple(tuple[float, ...]):
    """Cannot be compared."""

    __slots__ = ()

    def __lt__(self, other: object) -> NoReturn:
        raise RuntimeError("touched")

    __le__ = __gt__ = __ge__ = __eq__ = __lt__
    __hash__ = tuple.__hash__


class EndlessTuple(tuple[float, ...]):
    """Has more numbers than memory, for whoever looks at it as at any iterable."""

    __slots__ = ()

    def __iter__(self) -> NoReturn:
        raise AssertionError("somebody looked")


class TouchyFloat(float):
    """Cannot be compared."""

    def __lt__(self, other: object) -> NoReturn:
        raise RuntimeError("touched")

    __le__ = __gt__ = __ge__ = __eq__ = __lt__
    __hash__ = float.__hash__


class TouchyText(str):
    """Cannot be a key of a dictionary."""

    __slots__ = ()

    def __hash__(self) -> NoReturn:
        raise RuntimeError("touched")


def numbers_for_ever() -> Iterator[int]:
    while True:
        yield 1


def throw(error: BaseException) -> Callable[..., NoReturn]:
    def ask(*_: object) -> NoReturn:
        raise error

    return ask


def give(answer: object) -> Callable[..., Any]:
    return lambda *_: answer


HUGE = 10**5000
"""More digits than Python writes."""
EVERY = ["key", "group", "rank", "refuse", "piece", "victim", "waits", "served"]


class Wild(Fcfs):
    """Answers one question as the test likes."""

    name: ClassVar[str] = "wild"

    def __init__(self, what: str = "", answer: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self._what, self._as_told = what, answer or give(None)
        self.was_asked = False

    def _answer(self, what: str, usual: Any, *arguments: object) -> Any:
        if what != self._what:
            return usual
        self.was_asked = True
        return self._as_told(*arguments)

    def key(self, request: RequestView) -> Key:
        usual = (request.arrival,)
        return self._answer("key", usual, request)  # type: ignore[no-any-return]

    def group(self, request: RequestView) -> str:
        return self._answer("group", str(request.arrival % 3), request)  # type: ignore[no-any-return]

    def rank(self, group: GroupView) -> Key:
        return self._answer("rank", (), group)  # type: ignore[no-any-return]

    def refuse(self, request: RequestView, load: LoadView) -> str | None:
        return self._answer("refuse", None, request, load)  # type: ignore[no-any-return]

    def piece(self, request: RequestView, wanted: int, room: int) -> int:
        return self._answer("piece", min(wanted, room), request, wanted, room)  # type: ignore[no-any-return]

    def victim(self, running: Sequence[RunningView]) -> int:
        return self._answer("victim", len(running) - 1, running)  # type: ignore[no-any-return]

    def waits(self, group: str, others: object) -> None:
        self._answer("waits", None, group, others)

    def served(self, group: str, prompt_tokens: int, output_tokens: int) -> None:
        self._answer("served", None, group, prompt_tokens, output_tokens)


def serve(policy: Wild) -> Scheduler:
    """Serves requests that wait, run, are pre-empted and end as they must; returns the core."""
    drive = CoreDrive(policy, CAPACITY, running_max=3, step_tokens_max=6, depth=1)
    for _ in range(6):
        drive.add(12, 16)
        drive.step()
    drive.run()
    assert {ending.output_tokens for ending in drive.endings.values()} == {16}
    assert policy.was_asked, "nobody asked"
    return drive.core


def must_be_replaced(policy: Wild, says: str) -> None:
    core = serve(policy)
    assert core.policy_name == "fcfs"
    assert core.stats().policy_faults == 1
    assert says in core.policy_fault
    assert len(core.policy_fault.encode()) < 2 * SHOWN_MAX


@pytest.mark.parametrize("what", EVERY)
@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Unspeakable(), "raised what cannot be shown"),
        (Mumbling(), r"raised \udc80 mumbled"),
        (Ender("end"), "raised Ender('end')"),
        (SystemExit(0), "raised SystemExit(0)"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt()"),
        (GeneratorExit(), "raised GeneratorExit()"),
        (ValueError("x" * 100_000), "raised ValueError('xxx"),
        (ValueError("\udc80\n"), r"raised ValueError('\udc80\n')"),
    ],
)
def test_whatever_it_raises(what: str, error: BaseException, says: str) -> None:
    must_be_replaced(Wild(what, throw(error)), f"wild: {what} {says}")


@pytest.mark.parametrize(
    ("what", "answer", "says"),
    [
        ("key", give(numbers_for_ever()), "answered <generator"),
        ("key", give((float("nan"), 1)), "answered (nan, 1)"),
        ("key", give((HUGE,)), "answered what cannot be shown"),
        ("key", give(TouchyTuple((1,))), "answered"),
        ("group", give("\udc80"), r"answered '\udc80'"),
        ("group", give(numbers_for_ever()), "answered <generator"),
        ("rank", give(numbers_for_ever()), "answered <generator"),
        ("rank", give((TouchyFloat("nan"),)), "answered (nan,)"),
        ("refuse", give("\udfff"), r"answered '\udfff'"),
        ("refuse", give(TouchyText()), "answered ''"),
        ("piece", give(float("nan")), "answered nan"),
        ("piece", give(float("inf")), "answered inf"),
        ("piece", give(HUGE), "answered what cannot be shown"),
        ("piece", give(-HUGE), "answered what cannot be shown"),
        ("piece", give(2.0), "answered 2.0"),
        ("victim", give(HUGE), "answered what cannot be shown"),
        ("victim", give("0"), "answered '0'"),
    ],
)
def test_whatever_it_answers(what: str, answer: Callable[..., Any], says: str) -> None:
    must_be_replaced(Wild(what, answer), f"wild: {what} {says}")


def test_a_text_of_another_kind_is_a_text() -> None:
    core = serve(Wild("group", lambda view: TouchyText(view.arrival % 2)))
    assert core.policy_fault == ""


@pytest.mark.parametrize(
    "key",
    [
        lambda view: TouchyTuple((view.arrival,)),
        lambda view: EndlessTuple((view.arrival,)),
        lambda view: (TouchyFloat(-view.arrival), view.arrival),
        lambda view: (HUGE, -HUGE, float("inf"), view.arrival),
        lambda view: (True, view.arrival),
    ],
)
def test_a_key_of_another_kind_is_made_plain(key: Callable[[RequestView], Key]) -> None:
    core = serve(Wild("key", key))
    assert (core.policy_name, core.policy_fault) == ("wild", "")


def test_a_rank_of_another_kind_is_made_plain() -> None:
    core = serve(Wild("rank", lambda group: TouchyTuple((TouchyFloat(group.waiting),))))
    assert (core.policy_name, core.policy_fault) == ("wild", "")


def test_what_it_is_shown_is_not_its_own() -> None:
    def more_than_there_are(running: Any) -> int:
        running.append(running[0])
        return len(running) - 1

    must_be_replaced(Wild("victim", more_than_there_are), "wild: victim raised AttributeError")


def test_what_an_answer_says_of_itself_is_asked_while_the_question_is_open() -> None:
    was_open = []

    class Shifty:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            was_open.append(core.question.is_open)
            return int

    core = scheduler(Wild("piece", give(Shifty())))
    core.add(request())
    plan(core)
    assert was_open
    assert all(was_open)
    core.add(request())
    assert core.policy_fault.startswith("wild: piece raised TypeError")


def test_a_long_refusal_is_cut() -> None:
    core = scheduler(Wild("refuse", give("no" * REFUSAL_MAX)))
    with pytest.raises(Rejection) as caught:
        core.add(request())
    assert len(caught.value.message) == REFUSAL_MAX


@pytest.mark.parametrize("name", [5, None, "", "\udc80", "x" * 1000, numbers_for_ever()])
def test_a_name_that_is_none(name: object) -> None:
    class Nameless(Wild):
        pass

    Nameless.name = name  # type: ignore[assignment]
    core = scheduler()
    with pytest.raises(PolicyFault, match=r"Nameless'>: name answered"):
        core.set_policy(Nameless())
    core = scheduler(Nameless())
    core.policy_name.encode()
    core.add(request())
    assert core.policy_name == "fcfs"


def test_a_name_that_changes_is_what_it_was() -> None:
    policy = Wild()
    core = scheduler(policy)
    policy.name = 5  # type: ignore[misc,assignment]
    assert core.policy_name == "wild"


def test_a_policy_that_is_distrusted_is_replaced_at_once() -> None:
    """Also where nothing is planned for a while."""
    core = scheduler(Wild())
    core.distrust_policy("it is late")
    assert (core.policy_name, core.policy_fault) == ("fcfs", "wild: it is late")
    assert core.stats().policy_faults == 1
