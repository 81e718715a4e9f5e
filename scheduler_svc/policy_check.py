"""`twostroke policy check MODULE:NAME`: tries a policy out, in worlds made to break it.

What is asked of the policy (the worlds are in `policy_trial`):

    works     none of its answers had to be refused, none was late, and it never raised
    pure      `key` and `group` answer the same when asked again
    ends      every request that was not refused came to its end
    patience  nobody had to be put before everybody, as the policy never let it
    cheap     ordering a request takes less than KEY_US_MAX

The first three decide; the others are told. A policy that loops or sleeps is interrupted as in the
scheduler. One that cannot be is in a loop in C, or catches whatever comes; then this process ends
with a line for where it stands.
"""

import faulthandler
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from scheduler_svc.core import Policy, PolicyStalled, Question
from scheduler_svc.core.guard import Guard
from scheduler_svc.core.policies import OptionError, RequestView
from scheduler_svc.ctrl_c import ending_at_once
from scheduler_svc.policy_finder import PolicyNotFound, make_in_time, parse_options
from scheduler_svc.policy_trial import ANSWERS_S_MAX, OVERTAKES_MAX, Findings, World
from scheduler_svc.watchdog import LOAD_S, watching

WORLDS = 200
VIEWS = 50
KEYS = 1000
KEY_US_MAX = 20.0
STUCK_S = 60
"""Without a sign of life for so long, this process ends."""
STDERR = 2
EXIT_FAULTY, EXIT_USAGE = 1, 2

Make = Callable[[Question], Policy]


def check_policy(make: Make, worlds: int, question: Question) -> Findings:
    """Tries out policies that `make` makes, a new one for each world; `question` has a clock."""
    found = Findings()
    try:
        with watching(question):
            found.faults += impurities(_made(make, question), question)
            if not found.faults:
                found.key_us = _key_us(_made(make, question), question)
            for seed in range(worlds):
                if found.faults:
                    break
                World(seed, _made(make, question), question, found).run()
    except (PolicyNotFound, OptionError) as error:
        found.faults.append(str(error))
    return found


def _made(make: Make, question: Question) -> Policy:
    """Raises PolicyNotFound, and OptionError, as `make_policy` does."""
    faulthandler.dump_traceback_later(STUCK_S, file=STDERR, exit=True)
    question.begin_turn()
    return make(question)


def impurities(policy: Policy, question: Question) -> list[str]:
    """What is wrong with the answers of `key` and `group`, or differs when they are asked again."""
    guard, before_s = Guard(policy, question), question.took_s
    for view in _views(random.Random(0), VIEWS):
        question.begin_turn()
        first, again = [(guard.key(view), guard.group(view)) for _ in range(2)]
        if guard.fault:
            return [f"{guard.fault}, about {view}"]
        if first != again:
            return [f"key or group answers differently when asked again about {view}"]
        if (took_s := question.took_s - before_s) > ANSWERS_S_MAX:
            return [f"{guard.name}: its answers took {took_s:.1f} s for {view.arrival} requests"]
    return []


def _key_us(policy: Policy, question: Question) -> float:
    """What a key takes; 0 if there is none, which a world will tell of."""
    views = _views(random.Random(1), KEYS)
    question.begin_turn()
    began_s = time.perf_counter()
    try:
        question.put(lambda: [policy.key(view) for view in views])
    except PolicyStalled:
        question.drop()
    except BaseException:  # noqa: BLE001 - somebody else's code, whatever it raises
        return 0.0
    return (time.perf_counter() - began_s) / KEYS * 1e6


def _views(rng: random.Random, count: int) -> list[RequestView]:
    return [
        RequestView(
            arrival=number,
            priority=rng.choice([-1, 0, 0, 7]),
            tenant=rng.choice(["", "a", "b"]),
            prompt_tokens=rng.randint(1, 100_000),
            max_tokens=rng.randint(1, 100_000),
            expected_tokens=rng.choice([0, 5]),
            submitted_s=float(number),
            deadline_s=rng.choice([float("inf"), number + 30.0]),
        )
        for number in range(1, count + 1)
    ]


def main(
    policy: Annotated[str, typer.Argument(help="MODULE:NAME, or a name that is installed.")],
    policy_opt: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE; may be repeated.")
    ] = None,
    worlds: Annotated[int, typer.Option(min=1, help="How many worlds.")] = WORLDS,
) -> None:
    """Try out a policy. Exits with 0 if it can be trusted, with 1 if not."""
    sys.path.insert(0, "")  # a policy that is being written lies in the working directory
    err = Console(stderr=True, highlight=False, markup=False)
    question = Question(time.monotonic)
    with ending_at_once(), _ending_if_stuck():
        try:
            make = partial(make_in_time, name=policy, options=parse_options(policy_opt or []))
            with watching(question, LOAD_S):
                make(question)
        except (PolicyNotFound, OptionError) as error:
            err.print(f"error: {error}", style="red", soft_wrap=True)
            raise typer.Exit(EXIT_USAGE) from error
        found = check_policy(make, worlds, question)
    Console(highlight=False).print(_table(found))
    if found.faults:
        for fault in found.faults:
            err.print(f"fault: {fault}", style="red", soft_wrap=True)
        raise typer.Exit(EXIT_FAULTY)


@contextmanager
def _ending_if_stuck() -> Iterator[None]:
    """A timer that nothing in Python can hold up; `_made` winds it up again."""
    faulthandler.dump_traceback_later(STUCK_S, file=STDERR, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _table(found: Findings) -> Table:
    table = Table(show_header=False, box=None)
    table.add_row("worlds", str(found.worlds))
    table.add_row("requests", f"{found.requests}, refused {found.refused}")
    table.add_row("pre-emptions", str(found.preemptions))
    table.add_row("put before everybody", f"{found.reliefs} (overtaken {OVERTAKES_MAX} times)")
    slow = " (too slow)" if found.key_us > KEY_US_MAX else ""
    table.add_row("a key takes", f"{found.key_us:.2f} us{slow}")
    table.add_row("faults", str(len(found.faults)))
    return table


if __name__ == "__main__":
    typer.run(main)
