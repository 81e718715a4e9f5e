"""When a policy is interrupted: the timer's looks, made by hand on a clock of the test's."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from scheduler_svc.core import PolicyStalled, Question
from scheduler_svc.watchdog import ANSWER_S, LOOK_S, watching


@dataclass
class Watched:
    """A question whose answers take as long as the test says, and the timer's next look."""

    look: Callable[[], None] = lambda: None
    now_s: float = 0.0
    question: Question = field(init=False)

    def __post_init__(self) -> None:
        self.question = Question(lambda: self.now_s)

    def answer(self, took_s: float, *, is_looked_at: bool = False) -> None:
        def ask() -> None:
            self.now_s += took_s
            if is_looked_at:
                self.look()

        self.question.put(ask)


@pytest.fixture
def watched() -> Iterator[Watched]:
    it = Watched()
    with watching(it.question):
        signal.setitimer(signal.ITIMER_REAL, 0)
        handler = signal.getsignal(signal.SIGALRM)
        assert callable(handler)
        it.look = lambda: handler(signal.SIGALRM, None)
        yield it


def test_one_answer_that_takes_from_look_to_look(watched: Watched) -> None:
    def ask() -> None:
        watched.look()
        watched.now_s += LOOK_S
        watched.look()

    with pytest.raises(PolicyStalled):
        watched.question.put(ask)


def test_many_answers_in_one_turn(watched: Watched) -> None:
    watched.answer(ANSWER_S / 2, is_looked_at=True)
    watched.answer(ANSWER_S / 4, is_looked_at=True)
    with pytest.raises(PolicyStalled):
        watched.answer(ANSWER_S / 4, is_looked_at=True)


def test_as_many_in_several_turns(watched: Watched) -> None:
    for _ in range(10):
        watched.question.begin_turn()
        watched.answer(ANSWER_S / 2)
        watched.answer(ANSWER_S / 4, is_looked_at=True)


def test_a_process_that_was_stopped_in_the_middle_of_an_answer(watched: Watched) -> None:
    watched.answer(100.0, is_looked_at=True)
    watched.look()
    watched.question.begin_turn()
    watched.answer(0.0, is_looked_at=True)


def test_quick_answers_in_a_turn_that_takes_long(watched: Watched) -> None:
    for _ in range(10):
        watched.answer(ANSWER_S / 20, is_looked_at=True)
        watched.now_s += LOOK_S


def test_nobody_is_interrupted_outside_of_an_answer(watched: Watched) -> None:
    watched.answer(ANSWER_S, is_looked_at=True)
    watched.look()
    watched.look()
