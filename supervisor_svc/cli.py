"""`twostroke serve`, also as `python -m supervisor_svc`: runs an instance until it is stopped.

Options that belong to a service are passed on only where they were given, here or by their
variables, so that each default has one owner. A service's other options are set by its TWOSTROKE_*
variables, which children inherit.
"""

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from supervisor_svc import display
from supervisor_svc.instance import Tell, instance_dir
from supervisor_svc.stack import EXIT_FAILED, Stack, StackConfig, StackError
from supervisor_svc.upkeep import Upkeep
from svc_shell.durations import seconds
from svc_shell.listening import DEFAULT_HOST, DEFAULT_PORT, PORT_MAX, AddressError, bound
from svc_shell.presence import FRONTENDS_MAX
from svc_shell.unfailing import guard_stderr

EXIT_INTERRUPTED = 130
POLICY, POLICY_OPT = "TWOSTROKE_POLICY", "TWOSTROKE_POLICY_OPT"

ROLE_OPTIONS = {
    "executor": ("model", "log_level"),
    "scheduler": ("policy", "policy_opt", "depth", "drain_timeout", "stall_timeout", "log_level"),
    "frontend": ("host", "port", "metrics_port", "drain_timeout", "outage_timeout", "log_level"),
}


def commands(run_dir: Path, options: Mapping[str, object]) -> dict[str, list[str]]:
    """Each service's command line, with those of its options that are not None."""
    return {
        # -P: a folder of the service's name in the working directory must not be run instead.
        role: [sys.executable, "-P", "-m", f"{role}_svc", "--run-dir", str(run_dir)]
        + [
            word
            for name in names
            for value in _values(options.get(name))
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        for role, names in ROLE_OPTIONS.items()
    }


def _values(option: object) -> list[str]:
    """What was given for an option: nothing, one value, or several."""
    if option is None:
        return []
    return list(map(str, option)) if isinstance(option, list) else [str(option)]


def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            envvar="TWOSTROKE_MODEL",
            help="smollm2 (embedded), a folder or hub name of a causal LM, or hash (a fake).",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(envvar="TWOSTROKE_HOST", help="Address to listen on.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            envvar="TWOSTROKE_PORT",
            min=0,
            max=PORT_MAX,
            help="Port to listen on; 0 takes a free one.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="TWOSTROKE_METRICS_PORT",
            min=0,
            max=PORT_MAX,
            help="Port for Prometheus; further front ends take those after it.",
        ),
    ] = None,
    frontends: Annotated[
        int,
        typer.Option(
            envvar="TWOSTROKE_FRONTENDS",
            min=1,
            max=FRONTENDS_MAX,
            help="Front ends that share the port; connections are spread over them.",
        ),
    ] = 1,
    policy: Annotated[
        str | None,
        typer.Option(
            envvar=POLICY,
            help="Scheduling policy; `twostroke policy list` shows those of a server.",
        ),
    ] = None,
    policy_opt: Annotated[
        list[str] | None,
        typer.Option(envvar=POLICY_OPT, help="NAME=VALUE for the policy; may be repeated."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            envvar="TWOSTROKE_DEPTH", help="Steps planned ahead of the one that is computed."
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="TWOSTROKE_RUN_DIR",
            help="Directory for sockets and frames; left out: a private one on tmpfs.",
        ),
    ] = None,
    ready_timeout: Annotated[
        float, seconds("TWOSTROKE_READY_TIMEOUT", "Seconds to get ready in.")
    ] = 300.0,
    drain_timeout: Annotated[
        float, seconds("TWOSTROKE_DRAIN_TIMEOUT", "Seconds that running answers get to finish.")
    ] = 30.0,
    outage_timeout: Annotated[
        float | None,
        seconds(
            "TWOSTROKE_OUTAGE_TIMEOUT",
            "Seconds that answers wait for a scheduler or executor that is away.",
        ),
    ] = None,
    stall_timeout: Annotated[
        float | None,
        seconds(
            "TWOSTROKE_STALL_TIMEOUT",
            "Seconds without progress after which health is not serving.",
            least=0.1,
        ),
    ] = None,
    hang_timeout: Annotated[
        float,
        seconds(
            "TWOSTROKE_HANG_TIMEOUT",
            "Seconds without progress after which a service is killed and started again.",
            least=1.0,
        ),
    ] = 60.0,
    restarts_max: Annotated[
        int,
        typer.Option(
            envvar="TWOSTROKE_RESTARTS_MAX",
            min=0,
            help="Deaths of a service in a row after which everything is stopped.",
        ),
    ] = 15,
    log_level: Annotated[
        str | None,
        typer.Option(envvar="TWOSTROKE_LOG_LEVEL", help="debug, info, warning or error."),
    ] = None,
) -> None:
    """Start executor, scheduler and front ends; Ctrl-C drains and stops them, twice kills them.

    A service that dies is started again. Exits with 0 when it was stopped as asked, with 1 when a
    port is taken or a service did not get ready or died too often, with 2 when an option is wrong.
    """
    guard_stderr(lambda lines: f"{lines} lines of the supervisor could not be written here")
    err = Console(stderr=True, highlight=False, markup=False)
    tell = partial(err.print, soft_wrap=True)
    if log_level is None and err.is_terminal:
        log_level = "warning"  # the display says what a person wants to know of a good start
    if _is_for_another(context, policy):
        policy_opt = None
    options = {
        "model": model,
        "host": host,
        "port": port,
        "metrics_port": metrics_port,
        "policy": policy,
        "policy_opt": policy_opt,
        "depth": depth,
        "drain_timeout": drain_timeout,
        "outage_timeout": outage_timeout,
        "stall_timeout": stall_timeout,
        "log_level": log_level,
    }
    # It is on the command line now, from which the next policy can take it away.
    os.environ.pop(POLICY_OPT, None)
    # A service manager stops with SIGTERM what a person stops with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _check_ports(host, port, metrics_port, frontends)
        with instance_dir(run_dir, tell) as directory:
            config = StackConfig(
                commands(directory, options),
                frontends=frontends,
                ready_timeout_s=ready_timeout,
                drain_timeout_s=drain_timeout,
            )
            with Stack(directory, config) as stack:
                _run(stack, err, tell, restarts_max, hang_timeout)
    except KeyboardInterrupt:
        err.print("killed")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except (StackError, AddressError) as error:
        err.print(f"error: {error}", style="red", soft_wrap=True)
        status = error.exit_status if isinstance(error, StackError) else EXIT_FAILED
        raise typer.Exit(status) from error


def _is_for_another(context: typer.Context, policy: str | None) -> bool:
    """Whether the policy's options are the environment's, which names another policy."""
    source = context.get_parameter_source("policy_opt")
    is_inherited = source is not None and source.name == "ENVIRONMENT"
    return is_inherited and os.environ.get(POLICY, policy) != policy


def _check_ports(
    host: str | None, port: int | None, metrics_port: int | None, frontends: int
) -> None:
    """Raises AddressError if the front ends will not get their ports: they would find that out
    themselves, beside a model that loads."""
    host = DEFAULT_HOST if host is None else host
    port = DEFAULT_PORT if port is None else port
    metrics = range(metrics_port, metrics_port + frontends) if metrics_port else range(0)
    if port in metrics:
        raise typer.BadParameter(f"front ends listen on port {port}", param_hint="'--metrics-port'")
    bound(host, port).close()
    for wanted in metrics:
        bound(host, wanted, purpose="show metrics").close()


def _run(stack: Stack, err: Console, tell: Tell, restarts_max: int, hang_timeout_s: float) -> None:
    """Serves until it is asked to stop."""
    with ExitStack() as rest:
        try:
            address = display.start(stack, err)
            sys.stdout.write(f"ready at {address}\n")
            sys.stdout.flush()
            upkeep = Upkeep(
                stack, restarts_max=restarts_max, hang_timeout_s=hang_timeout_s, tell=tell
            )
            rest.callback(upkeep.close)
            upkeep.run()
        except KeyboardInterrupt:
            pass  # as ordered
        err.print("draining: running answers may finish; once more kills them")
        killed = stack.stop()
        err.print(f"stopped, killed: {', '.join(killed)}" if killed else "stopped")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(serve)
