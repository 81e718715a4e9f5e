"""What a policy's answers may take beside what the executor computes, on a clock of the test's."""

from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from scheduler_svc.core import Question, Scheduler, SchedulerConfig
from scheduler_svc.core.policies import Fcfs, Key, RequestView
from scheduler_svc.meter import Meter
from scheduler_svc.policy_budget import BEHIND_S, PolicyBudget
from tests.support.core import CAPACITY, request


class Leisurely(Fcfs):
    """Takes so long for each key as it is told."""

    name: ClassVar[str] = "leisurely"

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world

    def key(self, request: RequestView) -> Key:
        self._world.now_s += self._world.key_s
        return super().key(request)


class World:
    """A core whose policy is asked once a step, and a clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.key_s = 0.0
        self.core = Scheduler(
            SchedulerConfig(waiting_max=100_000), Leisurely(self), Question(lambda: self.now_s)
        )
        self.core.attach(CAPACITY, 1)
        self.meter = Meter()
        self.budget = PolicyBudget(self.core, self.meter)
        self.budget.look(self.now_s, 0.0)

    def run(self, seconds: float, *, key_s: float, step_s: float, idle_s: float = 0.0) -> float:
        """Steps for so long at depth 1, each with an answer; looks once a second.

        Returns how long the policy was in force.
        """
        self.key_s, began_s, look_at = key_s, self.now_s, self.now_s + 1
        while self.now_s < began_s + seconds and self.core.policy_name == "leisurely":
            self.core.add(request())
            self.meter.busy_ns += int(step_s * 1e9)
            self.now_s += max(0.0, step_s - key_s) + idle_s
            if self.now_s >= look_at:
                self.budget.look(self.now_s, 0.0)
                look_at += 1
        return self.now_s - began_s


@pytest.fixture
def world() -> World:
    return World()


def test_a_policy_that_takes_longer_than_the_steps_is_replaced(world: World) -> None:
    took_s = world.run(60, key_s=0.020, step_s=0.005)
    assert BEHIND_S < took_s < 3 * BEHIND_S
    assert world.core.policy_name == "fcfs"
    assert world.core.stats().policy_faults == 1
    assert world.core.policy_fault == (
        "leisurely: its answers took 4.0 s of 4.0 s, in which the executor computed for 1.0 s"
    )
    world.core.check()


@pytest.mark.parametrize(
    ("key_s", "step_s", "idle_s"),
    [
        (0.020, 0.020, 0.0),  # ready when the executor is
        (0.0005, 0.0001, 0.01),  # a model for tests, that computes nothing
        (0.009, 0.0, 0.1),  # all requests are refused
    ],
)
def test_a_policy_that_delays_no_step_stays(
    world: World, key_s: float, step_s: float, idle_s: float
) -> None:
    world.run(300, key_s=key_s, step_s=step_s, idle_s=idle_s)
    assert world.core.policy_name == "leisurely"


def test_what_was_slow_for_a_while_is_made_up_for(world: World) -> None:
    for _ in range(6):
        world.run(0.9 * BEHIND_S, key_s=0.3, step_s=0.0)
        world.run(4 * BEHIND_S, key_s=0.0, step_s=0.005)
    assert world.core.policy_name == "leisurely"


def test_a_process_that_is_stopped_in_an_answer_keeps_its_policy(world: World) -> None:
    world.run(10, key_s=0.001, step_s=0.005)
    world.key_s = 60.0
    world.core.add(request())
    world.budget.look(world.now_s, 0.0)
    world.run(10, key_s=0.001, step_s=0.005)
    assert world.core.policy_name == "leisurely"


def test_answers_during_one_long_step_delay_nothing(world: World) -> None:
    for long_step in range(3):
        for answer in range(6):
            world.key_s = 0.5
            world.core.add(request())
            world.now_s += 0.5
            world.budget.look(world.now_s, computing_s=answer + 1.0)
        world.meter.busy_ns += 6_000_000_000
        assert world.core.policy_name == "leisurely", long_step


def test_a_step_that_ended_sooner_than_it_seemed_is_not_held_against_a_policy(world: World) -> None:
    """Its executor was stopped for a minute, say; the time that it computes does not show that."""
    world.run(10, key_s=0.001, step_s=0.005)
    world.now_s += 60
    world.budget.look(world.now_s, computing_s=60.0)
    world.run(10, key_s=0.001, step_s=0.005)
    assert world.core.policy_name == "leisurely"


def test_the_account_of_a_new_policy_is_empty(world: World) -> None:
    world.run(0.9 * BEHIND_S, key_s=0.3, step_s=0.0)
    world.key_s = 2 * BEHIND_S / world.core.stats().waiting
    world.core.set_policy(Leisurely(world))
    world.budget.look(world.now_s, 0.0)
    world.run(0.9 * BEHIND_S, key_s=0.3, step_s=0.0)
    world.budget.look(world.now_s, 0.0)
    assert world.core.policy_name == "leisurely"


def test_a_slow_policy_is_told_of_once(world: World) -> None:
    with capture_logs() as logs:
        world.run(10, key_s=0.002, step_s=0.010)
        assert logs == []
        world.run(10, key_s=0.005, step_s=0.010)
    (line,) = logs
    assert line["event"] == "policy is slow"
    assert line["policy"] == "leisurely"
    assert line["answers_s"] == pytest.approx(0.5, abs=0.02)
    assert line["executor_s"] == pytest.approx(1.0, abs=0.02)
    assert world.core.policy_name == "leisurely"
