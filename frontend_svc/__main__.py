"""python -m frontend_svc: reads options, environment and signals once, and runs the front end."""

import asyncio
import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from frontend_svc.server import Frontend
from frontend_svc.settings import Settings
from frontend_svc.tokenizer import FileTokenizer, TokenizerError
from svc_shell.listening import AddressError
from svc_shell.logs import setup_logs
from svc_shell.parent import follow_parent
from svc_wire.errors import RunDirError
from svc_wire.rundir import RunDir, default_run_dir

DEFAULTS = Settings()


def _check_tokenizer(folder: Path) -> None:
    """Raises typer.BadParameter."""
    try:
        FileTokenizer(folder, datetime.now)  # noqa: TID251 - its chat template asks what day it is
    except TokenizerError as error:
        raise typer.BadParameter(str(error)) from error


def main(
    run_dir: Annotated[
        Path,
        typer.Option(envvar="TWOSTROKE_RUN_DIR", help="Private directory for sockets and frames."),
    ] = default_run_dir(),  # noqa: B008 - read once, here at the edge
    host: Annotated[
        str, typer.Option(envvar="TWOSTROKE_HOST", help="Address to listen on.")
    ] = DEFAULTS.host,
    port: Annotated[
        int,
        typer.Option(
            envvar="TWOSTROKE_PORT", min=0, max=65535, help="Port to listen on; 0: any free one."
        ),
    ] = DEFAULTS.port,
    metrics_port: Annotated[
        int,
        typer.Option(
            envvar="TWOSTROKE_METRICS_PORT",
            min=0,
            max=65535,
            help="Port for Prometheus; one named frontend-2 takes the one after it. 0: none.",
        ),
    ] = DEFAULTS.metrics_port,
    name: Annotated[
        str,
        typer.Option(
            envvar="TWOSTROKE_NAME",
            help="Of its lock. Left out: the first free of frontend, frontend-2, ...",
        ),
    ] = DEFAULTS.name,
    share_port: Annotated[
        bool, typer.Option("--share-port", help="Listen where other front ends listen already.")
    ] = DEFAULTS.shares_port,
    replace: Annotated[
        bool, typer.Option("--replace", help="Ask the front end of this name to leave, and go on.")
    ] = DEFAULTS.replaces,
    admin: Annotated[
        bool,
        typer.Option(
            envvar="TWOSTROKE_ADMIN",
            help="Let whoever reaches the address change the policy; on loopback everybody may.",
        ),
    ] = DEFAULTS.admin,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            envvar="TWOSTROKE_TOKENIZER",
            help="Folder with tokenizer.json; without it, the model's own folder.",
        ),
    ] = DEFAULTS.tokenizer,
    stream_buffer_tokens: Annotated[
        int,
        typer.Option(
            envvar="TWOSTROKE_STREAM_BUFFER_TOKENS",
            min=1,
            help="Tokens that may wait for one slow reader before its stream is ended.",
        ),
    ] = DEFAULTS.stream_buffer_tokens,
    streams_max: Annotated[
        int, typer.Option(envvar="TWOSTROKE_STREAMS_MAX", min=1, help="Requests at once.")
    ] = DEFAULTS.streams_max,
    message_bytes_max: Annotated[
        int,
        typer.Option(
            envvar="TWOSTROKE_MESSAGE_BYTES_MAX", min=1024, help="Largest request, in bytes."
        ),
    ] = DEFAULTS.message_bytes_max,
    outage_timeout: Annotated[
        float,
        typer.Option(
            envvar="TWOSTROKE_OUTAGE_TIMEOUT",
            min=0.0,
            help="Seconds that streams wait for a scheduler or executor that is away.",
        ),
    ] = DEFAULTS.outage_timeout_s,
    drain_timeout: Annotated[
        float,
        typer.Option(
            envvar="TWOSTROKE_DRAIN_TIMEOUT",
            min=0.0,
            help="Seconds that streams in flight get to finish after SIGTERM.",
        ),
    ] = DEFAULTS.drain_timeout_s,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only look whether the options are right, and a --tokenizer is there."
        ),
    ] = False,
    log_level: Annotated[str, typer.Option(envvar="TWOSTROKE_LOG_LEVEL")] = "info",
) -> None:
    """Serves the gRPC API for the scheduler of one runtime directory.

    SIGTERM drains: new requests are refused, running answers get to finish. SIGINT does the same,
    but closes the port at once, as others take new requests. Twice, either cuts answers off.
    """
    log = setup_logs("frontend", log_level)
    if check:
        if tokenizer is not None:
            _check_tokenizer(tokenizer)
        return
    # One prompt is one item: the tokenizer's own thread pool would only cost memory.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    follow_parent()
    settings = Settings(
        host=host,
        port=port,
        metrics_port=metrics_port,
        name=name,
        shares_port=share_port,
        replaces=replace,
        admin=admin,
        tokenizer=tokenizer,
        stream_buffer_tokens=stream_buffer_tokens,
        streams_max=streams_max,
        message_bytes_max=message_bytes_max,
        outage_timeout_s=outage_timeout,
        drain_timeout_s=drain_timeout,
    )
    try:
        checked = RunDir(run_dir)
        log.info("started", run_dir=str(checked.path))
        asyncio.run(_serve(checked, settings))
    except* (RunDirError, AddressError, TokenizerError) as failed:
        log.error("cannot serve", error="; ".join(map(str, failed.exceptions)))
        raise typer.Exit(1) from None
    log.info("stopped")


async def _serve(run_dir: RunDir, settings: Settings) -> None:
    # Chat templates ask what day it is.
    frontend = Frontend(run_dir, settings, now=datetime.now)  # noqa: TID251
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, frontend.stop)
    loop.add_signal_handler(signal.SIGINT, frontend.hand_over)
    loop.add_signal_handler(signal.SIGHUP, frontend.stop_at_once)  # the supervisor is gone
    await frontend.run()


if __name__ == "__main__":
    typer.run(main)
