"""`twostroke policy`: look at the scheduler's policy, change it, try one out; and `simulate`.

Trying out runs the scheduler's own code, found when it is asked for: the client imports no service.
"""

import dataclasses
import importlib.util
import json
import runpy
import sys
from typing import Annotated

import typer
from rich.table import Table

from twostroke_client.client import Client
from twostroke_client.errors import DeadlineExceeded
from twostroke_client.policies import PolicyState
from twostroke_client.reporting import (
    EXIT_USAGE,
    complain,
    reported,
    stderr,
    stdout,
    write_line,
)
from twostroke_client.values import DEFAULT_ADDRESS

SCHEDULER_PARTS = ("msgspec", "numpy", "structlog", "zmq", "scheduler_svc")

app = typer.Typer(help="Look at the scheduling policy, change it, or try one out.")

Address = Annotated[
    str, typer.Option(envvar="TWOSTROKE_ADDRESS", help="The server: host:port or unix:PATH.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command("list")
def list_policies(address: Address = DEFAULT_ADDRESS, as_json: Json = False) -> None:
    """Show the policy in force, those that can be, and what tenants got."""
    with reported(address), Client(address) as client:
        _show(client.policy(), as_json)


@app.command("set")
def set_policy(
    name: Annotated[str, typer.Argument(help="The policy's name; `list` shows them.")],
    policy_opt: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, for example weight.tenantA=3; may be repeated."),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Change the policy while the server runs; no request is lost."""
    options = {}
    for text in policy_opt or []:
        key, equals, value = text.partition("=")
        if not (key and equals):
            complain(f"write an option as NAME=VALUE, not {text!r}")
            raise typer.Exit(EXIT_USAGE)
        options[key] = value
    with reported(address), Client(address) as client:
        try:
            state = client.set_policy(name, options)
        except DeadlineExceeded:
            stderr().print("Whether it was changed, `twostroke policy list` tells.", style="dim")
            raise
        _show(state, as_json)


@app.command(context_settings=passed_on, add_help_option=False)
def check(context: typer.Context) -> None:
    """Try out a policy of your own: MODULE:NAME, in worlds made to break it."""
    become("scheduler_svc.policy_check", context.args)


def simulate(context: typer.Context) -> None:
    """Compare policies on a trace, with a model of the executor and a virtual clock."""
    become("scheduler_svc.simulate", context.args)


def become(module: str, arguments: list[str]) -> None:
    """Goes on as `python -m module` would. In this process, so that its output is guarded, too."""
    missing = [part for part in SCHEDULER_PARTS if importlib.util.find_spec(part) is None]
    if missing:
        complain(f"the scheduler is not installed: there is no {', '.join(missing)}")
        stderr().print("Install it with: pip install 'twostroke[scheduler]'", style="dim")
        raise typer.Exit(EXIT_USAGE)
    sys.path.insert(0, "")  # wherever this runs, a policy of one's own may lie
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _show(state: PolicyState, as_json: bool) -> None:
    if as_json:
        write_line(json.dumps(dataclasses.asdict(state)))
        return
    out = stdout()
    for name in state.available:
        out.print(f"{'*' if name == state.name else ' '} {name}")
    if state.name not in state.available:
        out.print(f"* {state.name}")
    if state.faults:
        out.print(f"\n{state.faults} replaced by fcfs, last: {state.last_fault}", style="red")
    if state.reliefs:
        out.print(f"\n{state.reliefs} requests were overtaken too often and went first")
    if state.tenants:
        out.print(_tenant_table(state))


def _tenant_table(state: PolicyState) -> Table:
    table = Table("tenant", box=None, padding=(0, 2, 0, 0))
    for column in ("requests", "prompt tokens", "cached", "output tokens", "pre-empted"):
        table.add_column(column, justify="right")
    for usage in state.tenants:
        cached = usage.cached_tokens / usage.prompt_tokens if usage.prompt_tokens else 0.0
        table.add_row(
            usage.tenant or "-",
            str(usage.requests),
            str(usage.prompt_tokens),
            f"{cached:.0%}",
            str(usage.output_tokens),
            str(usage.preemptions),
        )
    return table
