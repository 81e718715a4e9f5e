"""`twostroke simulate`, also as `python -m scheduler_svc.simulate`."""

import importlib.util
import math
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from scheduler_svc.core import Policy, Question, SchedulerConfig
from scheduler_svc.core.policies import OptionError
from scheduler_svc.ctrl_c import ending_at_once
from scheduler_svc.policy_finder import PolicyNotFound, make_in_time, parse_options
from scheduler_svc.simulate import cost, report
from scheduler_svc.simulate.machine import Machine, Outcome
from scheduler_svc.simulate.traces import read_trace
from scheduler_svc.simulate.workload import Arrival, Stream, WorkloadError, poisson
from scheduler_svc.watchdog import LOAD_S, watching
from svc_shell.sizes import parse_bytes

EXIT_USAGE = 2
WIDTH_OF_FILES = 120
err = Console(stderr=True, highlight=False, markup=False)


def main(
    policy: Annotated[
        str, typer.Option(help="Policies to compare, separated by commas: names or MODULE:NAME.")
    ] = "fcfs",
    policy_opt: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE for all policies of --policy, POLICY:NAME=VALUE for one; repeatable."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Azure LLM, BurstGPT (CSV) or Mooncake (JSONL) trace.")
    ] = None,
    poisson_rate: Annotated[
        list[str] | None,
        typer.Option(
            "--poisson",
            help="RATE, TENANT:RATE or TENANT:RATE:PROMPT,OUTPUT in requests/s; may be repeated.",
        ),
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="PROMPT,OUTPUT tokens: 512 (all), 100-900 (uniform), ~512 (median).")
    ] = "~512,~128",
    duration: Annotated[float, typer.Option(min=0.01, help="Seconds of --poisson.")] = 60.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Most requests of a trace.")] = None,
    speed: Annotated[float, typer.Option(min=1e-3, help="Play a trace so much faster.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of --poisson.")] = 0,
    deadline: Annotated[
        float, typer.Option(min=0.0, help="Seconds after which a request gives up; 0: never.")
    ] = 0.0,
    executor: Annotated[
        str, typer.Option(help=f"Cost model: {', '.join(cost.shipped())} or a JSON file.")
    ] = "llama-8b",
    fit: Annotated[
        Path | None,
        typer.Option(help="Fit --executor's costs to measured steps; print the model and end."),
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(min=1, help="KV blocks, if not as measured.")
    ] = None,
    swap_memory: Annotated[
        int,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Host memory for KV of requests that have to wait again; 0: none.",
        ),
    ] = "4GiB",  # type: ignore[assignment]
    running_max: Annotated[int, typer.Option(min=1)] = 256,
    step_tokens_max: Annotated[int, typer.Option(min=1)] = 2048,
    itl_target_ms: Annotated[float, typer.Option(min=0.0)] = 0.0,
    depth: Annotated[int, typer.Option(min=0)] = 1,
    picture: Annotated[Path | None, typer.Option(help="Draw the distributions there.")] = None,
) -> None:
    """Compare policies on the real scheduler, with a model of the executor and a virtual clock."""
    try:
        model = cost.load(executor)
        if fit:
            sys.stdout.write(cost.fit(cost.load_samples(fit), model, fit.stem).to_json())
            return
        arrivals = _workload(trace, poisson_rate, lengths, duration, limit, speed, seed)
        policies = [
            _load(name, texts)
            for name, texts in _options_by_policy(policy.split(","), policy_opt or [])
        ]
    except (cost.CostError, WorkloadError, PolicyNotFound, OptionError) as error:
        _refuse(str(error))
    if picture and importlib.util.find_spec("matplotlib") is None:
        _refuse("--picture needs matplotlib: pip install 'twostroke[simulate]'")
    if blocks:
        model = cost.with_blocks(model, blocks)
    config = SchedulerConfig(
        depth=depth, step_tokens_max=step_tokens_max, running_max=running_max,
        waiting_max=len(arrivals), itl_target_ms=itl_target_ms,
    )  # fmt: skip
    outcomes = []
    for each in policies:
        began_s = time.perf_counter()
        machine = Machine(each, model, config, swap_bytes=swap_memory)
        with ending_at_once():
            outcome = machine.run(arrivals, deadline or math.inf)
        outcomes.append(outcome)
        _say_pace(outcome, time.perf_counter() - began_s)
    out = Console(highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=WIDTH_OF_FILES)
    out.print(report.table(outcomes))
    if len(report.by_tenant(outcomes[0].lives)) > 1:
        out.print("", report.tenant_table(outcomes), sep="\n")
    if any(outcome.preemptions for outcome in outcomes):
        out.print("", report.memory_table(outcomes), sep="\n")
    if picture:
        report.draw(outcomes, picture, f"{len(arrivals)} requests, {model.name}")


def _options_by_policy(names: list[str], texts: list[str]) -> list[tuple[str, list[str]]]:
    """Each policy with the options that name it or nobody."""
    owners = [(text, next((n for n in names if text.startswith(f"{n}:")), None)) for text in texts]
    return [
        (
            name,
            [
                text.removeprefix(f"{name}:")
                for text, owner in owners
                if owner is None or owner == name
            ],
        )
        for name in names
    ]


def _load(name: str, option_texts: list[str]) -> Policy:
    """Raises PolicyNotFound, also if it takes too long, and OptionError."""
    options, question = parse_options(option_texts), Question(time.monotonic)
    with ending_at_once(), watching(question, LOAD_S):
        return make_in_time(question, name, options)


def _workload(
    trace: Path | None, rates: list[str] | None, lengths: str,
    duration_s: float, limit: int | None, speed: float, seed: int,
) -> list[Arrival]:  # fmt: skip
    if (trace is None) == (not rates):
        raise WorkloadError("give either --trace or --poisson")
    if trace:
        return read_trace(trace, limit=limit, speed=speed)
    return poisson([Stream.parse(rate, lengths) for rate in rates or []], duration_s, seed)


def _say_pace(outcome: Outcome, took_s: float) -> None:
    pace = outcome.end_s / max(took_s, 1e-9)
    err.print(
        f"{outcome.policy}: {outcome.end_s:.1f} s in {took_s:.1f} s, {pace:,.0f} times real time"
    )
    if outcome.policy_fault:
        err.print(f"replaced by fcfs: {outcome.policy_fault}", style="red")


def _refuse(message: str) -> NoReturn:
    err.print(f"error: {message}", style="red", soft_wrap=True)
    raise typer.Exit(EXIT_USAGE)


if __name__ == "__main__":
    typer.run(main)
