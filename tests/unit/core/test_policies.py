"""The order that each policy that ships makes of requests, and what it refuses."""

import math

import pytest

from scheduler_svc.core.policies import (
    BY_NAME,
    Deadline,
    Fair,
    Fcfs,
    GroupView,
    LoadView,
    OptionError,
    Policy,
    Prefix,
    Priority,
    RequestView,
    RunningView,
    Sjf,
)


def view(
    arrival: int,
    *,
    priority: int = 0,
    tenant: str = "",
    max_tokens: int = 10,
    expected_tokens: int = 0,
    submitted_s: float = 0.0,
    deadline_s: float = math.inf,
) -> RequestView:
    return RequestView(
        arrival=arrival,
        priority=priority,
        tenant=tenant,
        prompt_tokens=5,
        max_tokens=max_tokens,
        expected_tokens=expected_tokens,
        submitted_s=submitted_s,
        deadline_s=deadline_s,
    )


def order(policy: Policy, *views: RequestView) -> list[int]:
    return [v.arrival for v in sorted(views, key=policy.key)]


def load(step_s: float = 0.01, prompt_token_s: float = 0.001, now_s: float = 0.0) -> LoadView:
    return LoadView(
        now_s=now_s,
        waiting=1,
        running=1,
        running_max=8,
        step_s=step_s,
        prompt_token_s=prompt_token_s,
    )


def group(name: str, arrival: int = 1, cached: int = 0) -> GroupView:
    return GroupView(name=name, waiting=1, head=view(arrival), count_cached=lambda: cached)


def test_fcfs_goes_by_arrival() -> None:
    assert order(Fcfs(), view(2, priority=9), view(1), view(3)) == [1, 2, 3]


def test_priority_goes_by_priority_then_arrival() -> None:
    assert order(Priority(), view(1), view(2, priority=5), view(3, priority=5)) == [2, 3, 1]


def test_ageing_lets_an_old_request_pass_a_young_one_of_higher_priority() -> None:
    policy = Priority({"ageing_s": "10"})
    old, young = view(1), view(2, priority=1, submitted_s=9.0)
    assert order(policy, old, young) == [2, 1]
    assert order(policy, old, view(2, priority=1, submitted_s=11.0)) == [1, 2]


def test_sjf_goes_by_the_expected_tokens_or_the_most() -> None:
    jobs = view(1, max_tokens=50), view(2, max_tokens=20), view(3, max_tokens=90, expected_tokens=5)
    assert order(Sjf(), *jobs) == [3, 2, 1]
    assert not Sjf.displaces


def test_sjf_with_ageing_lets_a_long_job_wait_so_long_and_no_longer() -> None:
    policy = Sjf({"ageing_s_per_token": "1"})
    long = view(1, max_tokens=50)
    assert order(policy, long, view(2, max_tokens=5, submitted_s=44.0)) == [2, 1]
    assert order(policy, long, view(2, max_tokens=5, submitted_s=46.0)) == [1, 2]


def test_prefix_deals_out_in_turn_and_ranks_by_what_is_cached() -> None:
    policy = Prefix({"window": "3"})
    assert [policy.group(view(arrival)) for arrival in range(1, 5)] == ["1", "2", "0", "1"]
    assert policy.rank(group("1", cached=8)) < policy.rank(group("2", cached=4))
    assert order(policy, view(2), view(1)) == [1, 2]


def test_deadline_goes_by_deadline_and_those_without_come_last() -> None:
    assert order(Deadline(), view(1), view(2, deadline_s=9.0), view(3, deadline_s=8.0)) == [3, 2, 1]


def test_deadline_refuses_what_would_be_late_if_it_started_now() -> None:
    policy = Deadline()  # 5 prompt tokens and 10 steps: 0.105 s
    assert policy.refuse(view(1, deadline_s=1.2), load(now_s=1.09)) is None
    assert policy.refuse(view(1), load(now_s=1e9)) is None
    reason = policy.refuse(view(1, deadline_s=1.2), load(now_s=1.1))
    assert reason == "it would take 0.11 s, and the deadline is in 0.10 s"
    assert policy.refuse(view(1, deadline_s=1.2, expected_tokens=2), load(now_s=1.1)) is None
    assert Deadline({"margin": "2"}).refuse(view(1, deadline_s=1.2), load(now_s=1.0))


def test_fair_serves_who_had_least() -> None:
    policy = Fair()
    policy.served("a", 10, 0)
    policy.served("b", 0, 4)
    assert policy.rank(group("b")) < policy.rank(group("a"))
    policy.served("b", 0, 2)
    assert policy.rank(group("a")) < policy.rank(group("b"))
    assert policy.group(view(1, tenant="a")) == "a"
    assert order(policy, view(2), view(1)) == [1, 2]


def test_fair_counts_by_weight() -> None:
    policy = Fair({"weight.a": "4"})
    policy.served("a", 30, 0)
    policy.served("b", 10, 0)
    assert policy.rank(group("a")) < policy.rank(group("b"))


def test_fair_gives_no_more_credit_for_idling_than_it_says() -> None:
    policy = Fair({"credit": "30"})
    policy.served("busy", 100, 0)
    policy.waits("newcomer", ["busy"])
    policy.served("newcomer", 29, 0)
    assert policy.rank(group("newcomer")) < policy.rank(group("busy"))
    policy.served("newcomer", 2, 0)
    policy.waits("newcomer", ["busy"])  # has used it up: that it was away does not renew it
    assert policy.rank(group("newcomer")) > policy.rank(group("busy"))
    policy.waits("alone", [])
    policy.served("alone", 30, 0)
    assert policy.rank(group("alone")) == policy.rank(group("newcomer"))


def test_fair_without_credit_is_as_published() -> None:
    policy = Fair({"credit": "0"})
    policy.served("busy", 100, 0)
    policy.waits("newcomer", ["busy"])
    assert policy.rank(group("newcomer")) == policy.rank(group("busy"))


def test_fair_takes_memory_from_who_had_most_its_latest_first() -> None:
    policy = Fair()
    policy.served("a", 10, 0)
    running = [
        RunningView(request=view(arrival, tenant=tenant), known_tokens=5, preemptions=0)
        for arrival, tenant in ((1, "a"), (2, "a"), (3, "b"))
    ]
    assert policy.victim(running) == 1


def test_fair_forgets_who_was_heard_of_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.core.policies.fair.TENANTS_MAX", 2)
    policy = Fair()
    for tenant in ("a", "b", "c"):
        policy.served(tenant, 10, 0)
    assert policy.rank(group("a")) == (0.0,)
    assert policy.rank(group("b")) > (0.0,)


def test_what_a_policy_does_not_decide_goes_the_usual_way() -> None:
    policy = Fcfs()
    assert policy.group(view(1)) == ""
    assert policy.rank(group("")) == ()
    assert policy.refuse(view(1), load()) is None
    assert policy.piece(view(1), 7, 5) == policy.piece(view(1), 5, 7) == 5
    running = RunningView(request=view(1), known_tokens=5, preemptions=0)
    assert policy.victim([running] * 3) == 2
    policy.waits("", [])
    policy.served("", 1, 1)


@pytest.mark.parametrize("name", BY_NAME)
def test_an_option_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="no option colour"):
        BY_NAME[name]({"colour": "red"})


@pytest.mark.parametrize("text", ["red", "nan", "inf", "-1", ""])
def test_a_value_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="ageing_s must be a number of at least 0"):
        Priority({"ageing_s": text})
    with pytest.raises(OptionError, match=r"weight\.a must be"):
        Fair({"weight.a": text})
    with pytest.raises(OptionError):
        Prefix({"window": "0"})


@pytest.mark.parametrize("name", BY_NAME)
def test_a_policy_is_known_by_its_name(name: str) -> None:
    assert BY_NAME[name]().name == name
