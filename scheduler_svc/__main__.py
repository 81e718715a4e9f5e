"""python -m scheduler_svc: reads options, environment and signals once, and runs the service."""

import signal
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from scheduler_svc import collector
from scheduler_svc.core import Question, SchedulerConfig
from scheduler_svc.core.policies import OptionError
from scheduler_svc.ctrl_c import ending_at_once
from scheduler_svc.policy_finder import PolicyNotFound, make_in_time, names, parse_options
from scheduler_svc.service import Service
from scheduler_svc.watchdog import LOAD_S, watching
from svc_shell.logs import setup_logs
from svc_shell.parent import follow_parent
from svc_shell.pulse import beat
from svc_wire.errors import RunDirError
from svc_wire.ring import DEPTH_MAX
from svc_wire.rundir import RunDir, default_run_dir

Names = Annotated[
    str,
    typer.Option(
        envvar=["TWOSTROKE_POLICY", "POLICY"],
        help=f"Scheduling policy: {', '.join(names())}, or MODULE:NAME.",
    ),
]


LEAVE_S = 10.0
"""A scheduler that is replaced has so long to leave."""


def main(
    run_dir: Annotated[
        Path,
        typer.Option(envvar="TWOSTROKE_RUN_DIR", help="Private directory for sockets and frames."),
    ] = default_run_dir(),  # noqa: B008 - read once, here at the edge
    policy: Names = "fcfs",
    policy_opt: Annotated[
        list[str] | None,
        typer.Option(
            envvar="TWOSTROKE_POLICY_OPT", help="NAME=VALUE for the policy; may be repeated."
        ),
    ] = None,
    depth: Annotated[
        int,
        typer.Option(
            envvar="TWOSTROKE_DEPTH",
            min=0,
            max=DEPTH_MAX,
            help="Steps published beyond the one that is computed; 0 is synchronous.",
        ),
    ] = 1,
    step_tokens_max: Annotated[
        int, typer.Option(envvar="TWOSTROKE_STEP_TOKENS_MAX", min=1, help="Tokens a step.")
    ] = 2048,
    running_max: Annotated[
        int, typer.Option(envvar="TWOSTROKE_RUNNING_MAX", min=1, help="Sequences in the batch.")
    ] = 256,
    waiting_max: Annotated[
        int, typer.Option(envvar="TWOSTROKE_WAITING_MAX", min=1, help="Requests that may wait.")
    ] = 1024,
    overtakes_max: Annotated[
        int,
        typer.Option(
            envvar="TWOSTROKE_OVERTAKES_MAX",
            min=1,
            help="Later requests that a policy may admit before the one that waits longest.",
        ),
    ] = 1000,
    itl_target_ms: Annotated[
        float,
        typer.Option(
            envvar="TWOSTROKE_ITL_TARGET_MS",
            min=0.0,
            help="Cut prompts so that running answers get their next token in time; 0: off.",
        ),
    ] = 0.0,
    prefix_cache: Annotated[
        bool, typer.Option(envvar="TWOSTROKE_PREFIX_CACHE", help="Reuse KV of equal prefixes.")
    ] = True,
    stall_timeout: Annotated[
        float,
        typer.Option(
            envvar="TWOSTROKE_STALL_TIMEOUT",
            min=0.1,
            help="Seconds without progress of the executor after which the service is not ready.",
        ),
    ] = 5.0,
    drain_timeout: Annotated[
        float,
        typer.Option(
            envvar="TWOSTROKE_DRAIN_TIMEOUT",
            min=0.0,
            help="Seconds that requests in flight get to finish after SIGTERM.",
        ),
    ] = 30.0,
    resume_grace: Annotated[
        float,
        typer.Option(
            envvar="TWOSTROKE_RESUME_GRACE",
            min=0.0,
            help="Seconds that requests go on without a front end, for their clients to come back.",
        ),
    ] = 10.0,
    replace: Annotated[
        bool, typer.Option("--replace", help="Ask the scheduler that runs to leave, and go on.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only look whether the options are right.")
    ] = False,
    log_level: Annotated[str, typer.Option(envvar="TWOSTROKE_LOG_LEVEL")] = "info",
) -> None:
    """Plans the executor's steps for the front ends of one runtime directory.

    SIGTERM drains; SIGINT, or SIGTERM once more, leaves the requests to a successor at once.
    """
    log = setup_logs("scheduler", log_level)
    follow_parent()  # first: an orphan must not make anew what was removed behind its supervisor
    question = Question(time.monotonic)
    try:
        options = parse_options(policy_opt or [])
        with ending_at_once(), watching(question, LOAD_S):
            chosen = make_in_time(question, policy, options)
    except (PolicyNotFound, OptionError) as error:
        raise typer.BadParameter(str(error)) from error
    if check:
        return
    try:
        checked = RunDir(run_dir)
        # All is imported and checked by now: the pause is that of a handover, not of a start.
        lock = checked.take_over("scheduler", LEAVE_S) if replace else checked.lock("scheduler")
    except RunDirError as error:
        log.error("cannot start", error=str(error))
        raise typer.Exit(1) from error
    config = SchedulerConfig(
        depth=depth,
        step_tokens_max=step_tokens_max,
        running_max=running_max,
        waiting_max=waiting_max,
        prefix_cache=prefix_cache,
        overtakes_max=overtakes_max,
        itl_target_ms=itl_target_ms,
    )
    service = Service(
        checked,
        config,
        chosen,
        stall_timeout_s=stall_timeout,
        drain_timeout_s=drain_timeout,
        resume_grace_s=resume_grace,
        pulse=partial(beat, lock),
    )
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    signal.signal(signal.SIGINT, lambda *_: service.leave())
    signal.signal(signal.SIGHUP, lambda *_: service.hurry())  # all go, and nobody comes after them
    log.info("started", run_dir=str(checked.path), policy=policy, depth=depth, lock=lock)
    collector.freeze()
    with watching(service.question):
        service.run()


if __name__ == "__main__":
    typer.run(main)
