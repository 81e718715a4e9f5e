"""`twostroke serve`, `restart`, `drain` and `demo`: what needs the server parts on this machine.

They are imported when they are asked for, so that a client alone needs none of them.
"""

import importlib.util
import runpy
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twostroke_client.client import Client
from twostroke_client.reporting import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    complain,
    reported,
    stderr,
    stdout,
    write_line,
)
from twostroke_client.terminal import show
from twostroke_client.values import Message

if TYPE_CHECKING:
    from supervisor_svc.control import Order

DEMO_PROMPT = "In two or three sentences: what is a two-stroke engine?"

SERVER_PARTS = ("msgspec", "structlog", "zmq", "grpc_health", "tokenizers", "torch", "transformers")


RunDirectory = Annotated[
    Path | None,
    typer.Option(
        envvar="TWOSTROKE_RUN_DIR", help="That of the instance; needed where several run."
    ),
]


def serve(context: typer.Context) -> None:
    """Start executor, scheduler and front end on this machine."""
    require_server_parts()
    from supervisor_svc import cli

    cli.app(args=context.args, prog_name="twostroke serve")


def restart(
    context: typer.Context,
    role: Annotated[str, typer.Argument(help="scheduler, executor or frontend.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only look for faults in these options.")
    ] = False,
    run_dir: RunDirectory = None,
) -> None:
    """Replace one service of the instance on this machine; further options go to its command line.

    Answers that are running go on: twostroke restart scheduler --policy priority
    """
    require_server_parts()
    from supervisor_svc.control import Restart

    write_line(_order(run_dir, Restart(role, tuple(context.args), checks_only=check)))


def drain(run_dir: RunDirectory = None) -> None:
    """End the instance on this machine when its running answers are finished; waits for that."""
    require_server_parts()
    from supervisor_svc.control import Drain

    _order(run_dir, Drain())


def replay(context: typer.Context) -> None:
    """Run again what an executor wrote with --record, and compare the tokens."""
    require_server_parts()
    sys.argv[1:] = context.args
    runpy.run_module("executor_svc.replay", run_name="__main__", alter_sys=True)


def _order(run_dir: Path | None, order: "Order") -> str:
    """What was done."""
    from supervisor_svc import control

    try:
        return control.order(control.find_instance(run_dir), order)
    except control.ControlError as error:
        complain(str(error))
        raise typer.Exit(error.exit_status) from error


def demo(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = DEMO_PROMPT,
    model: Annotated[
        str | None, typer.Option(envvar="TWOSTROKE_MODEL", help="As for serve.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 160,
) -> None:
    """Start everything, answer one prompt through gRPC, stop everything."""
    require_server_parts()
    from supervisor_svc import display
    from supervisor_svc.cli import commands
    from supervisor_svc.instance import instance_dir
    from supervisor_svc.stack import Stack, StackConfig, StackError

    err = stderr()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started_s = time.monotonic()
    try:
        with instance_dir(None, partial(err.print, soft_wrap=True)) as run_dir:
            options = {"model": model, "port": 0, "log_level": "warning"}
            with Stack(run_dir, StackConfig(commands(run_dir, options))) as stack:
                address = display.start(stack, err)
                processes = ", ".join(f"{role} {pid}" for role, pid in stack.pids.items())
                err.print(f"ready at {address} after {time.monotonic() - started_s:.1f} s")
                err.print(f"processes: {processes}\n\n> {prompt}\n")
                with reported(address), Client(address) as client:
                    asked = [Message("user", prompt)]
                    with client.generate(asked, max_tokens=max_tokens, temperature=0) as stream:
                        show(stream, stdout(), err)
                killed = stack.stop()
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except StackError as error:
        complain(str(error))
        raise typer.Exit(EXIT_FAILED) from error
    if killed:
        complain(f"had to be killed: {', '.join(killed)}")
        raise typer.Exit(EXIT_FAILED)
    err.print("\nall processes have ended", style="dim")


def require_server_parts() -> None:
    """Says what to install, and exits, where the services cannot run."""
    missing = [part for part in SERVER_PARTS if importlib.util.find_spec(part) is None]
    if missing:
        complain(f"the server parts are not installed: there is no {', '.join(missing)}")
        stderr().print("Install them with: pip install 'twostroke[server]'", style="dim")
        raise typer.Exit(EXIT_USAGE)
