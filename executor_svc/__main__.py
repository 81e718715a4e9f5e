"""python -m executor_svc: reads options, environment and signals once, and runs the service."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
import typer
import zmq

from executor_svc.assembly import HASH, make_runner
from executor_svc.config import ExecutorConfig
from executor_svc.errors import ExecutorError
from executor_svc.loading import Loading
from executor_svc.mailbox import Mailbox
from executor_svc.model_source import find_model
from executor_svc.runner import RunnerError
from executor_svc.service import Service
from svc_shell.logs import setup_logs
from svc_shell.parent import follow_parent
from svc_shell.pulse import beat
from svc_shell.sizes import parse_bytes
from svc_wire.errors import WireError
from svc_wire.ring import ExecutorRing, sweep_rings
from svc_wire.rundir import RunDir, default_run_dir


def _check_model(name: str) -> None:
    """Raises typer.BadParameter."""
    try:
        if name != HASH:
            find_model(name)
    except ExecutorError as error:
        raise typer.BadParameter(str(error)) from error


def main(
    run_dir: Annotated[
        Path,
        typer.Option(envvar="TWOSTROKE_RUN_DIR", help="Private directory for sockets and frames."),
    ] = default_run_dir(),  # noqa: B008 - read once, here at the edge
    model: Annotated[
        str,
        typer.Option(
            envvar="TWOSTROKE_MODEL",
            help="smollm2 (embedded), hash (no model at all), a local folder, or a hub name.",
        ),
    ] = "smollm2",
    served_name: Annotated[
        str | None,
        typer.Option(envvar="TWOSTROKE_SERVED_NAME", help="Name in requests; absent: --model."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(envvar="TWOSTROKE_DTYPE", help="auto, float32, bfloat16 or float16.")
    ] = "auto",
    device: Annotated[
        str, typer.Option(envvar="TWOSTROKE_DEVICE", help="auto, cpu or cuda.")
    ] = "auto",
    rows_max: Annotated[
        int | None, typer.Option(envvar="TWOSTROKE_ROWS_MAX", min=1, help="Most rows a step.")
    ] = None,
    tokens_max: Annotated[
        int | None, typer.Option(envvar="TWOSTROKE_TOKENS_MAX", min=1, help="Most tokens a step.")
    ] = None,
    model_len_max: Annotated[
        int | None,
        typer.Option(
            envvar="TWOSTROKE_MODEL_LEN_MAX",
            min=1,
            help="Most tokens of a sequence; absent: what the model was made for.",
        ),
    ] = None,
    block_size: Annotated[
        int, typer.Option(envvar="TWOSTROKE_BLOCK_SIZE", min=1, help="Tokens a KV block.")
    ] = 16,
    num_blocks: Annotated[
        int | None,
        typer.Option(
            envvar="TWOSTROKE_NUM_BLOCKS", min=1, help="KV blocks; absent: by --kv-memory."
        ),
    ] = None,
    kv_memory: Annotated[
        int | None,
        typer.Option(
            envvar="TWOSTROKE_KV_MEMORY",
            parser=parse_bytes,
            metavar="SIZE",
            help="Memory for the KV cache, for example 512MiB; absent: 1GiB on a CPU, what is left "
            "beside the model on a GPU.",
        ),
    ] = None,
    swap_memory: Annotated[
        int | None,
        typer.Option(
            envvar="TWOSTROKE_SWAP_MEMORY",
            parser=parse_bytes,
            metavar="SIZE",
            help="Host memory for KV of requests that have to wait again, where copying is cheaper "
            "than computing; 0: none; absent: at most 4GiB beside a GPU, none on a CPU.",
        ),
    ] = None,
    load_format: Annotated[
        str,
        typer.Option(
            envvar="TWOSTROKE_LOAD_FORMAT",
            help="auto, or dummy: random weights of the model's shape, for benchmarks on a GPU.",
        ),
    ] = "auto",
    attention: Annotated[
        str,
        typer.Option(
            envvar="TWOSTROKE_ATTENTION", help="On a GPU: auto, flashinfer or triton kernels."
        ),
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(envvar="TWOSTROKE_THREADS", min=1, help="CPU threads; absent: CPUs less one."),
    ] = None,
    step_ms: Annotated[
        float,
        typer.Option(
            envvar="TWOSTROKE_STEP_MS", min=0, help="Hash model only: how long a step takes."
        ),
    ] = 0.0,
    trace: Annotated[
        Path | None,
        typer.Option(envvar="TWOSTROKE_TRACE", help="Append every step's timing to this file."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            envvar="TWOSTROKE_RECORD", help="Write plans and results to this new file, for replay."
        ),
    ] = None,
    record_bytes: Annotated[
        int,
        typer.Option(
            envvar="TWOSTROKE_RECORD_BYTES",
            parser=parse_bytes,
            metavar="SIZE",
            help="Bound of the record.",
        ),
    ] = "1GiB",  # type: ignore[assignment]
    record_redacted: Annotated[
        bool,
        typer.Option(
            "--record-redacted",
            envvar="TWOSTROKE_RECORD_REDACTED",
            help="Leave all tokens out of the record.",
        ),
    ] = False,
    fail_seed: Annotated[
        int | None, typer.Option(envvar="TWOSTROKE_FAIL_SEED", hidden=True)
    ] = None,
    kill_seed: Annotated[
        int | None, typer.Option(envvar="TWOSTROKE_KILL_SEED", hidden=True)
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only look whether the options are right, and the model is there."
        ),
    ] = False,
    log_level: Annotated[str, typer.Option(envvar="TWOSTROKE_LOG_LEVEL")] = "info",
) -> None:
    """Executes the batch plans of the scheduler of one runtime directory."""
    log = setup_logs("executor", log_level)
    follow_parent()
    if check:
        _check_model(model)
        return
    config = ExecutorConfig(
        model=model,
        served_name=served_name,
        dtype=dtype,
        device=device,
        rows_max=rows_max,
        tokens_max=tokens_max,
        model_len_max=model_len_max,
        block_size=block_size,
        num_blocks=num_blocks,
        kv_memory_bytes=kv_memory,
        swap_bytes=swap_memory,
        threads=threads,
        step_ms=step_ms,
        load_format=load_format,
        attention=attention,
        trace=trace,
        record=record,
        record_bytes=record_bytes,
        record_redacted=record_redacted,
        fail_seed=fail_seed,
        kill_seed=kill_seed,
    )
    try:
        loaded = _run(config, RunDir(run_dir), log)
    except (ExecutorError, WireError, RunnerError, zmq.ZMQError) as error:
        log.error("cannot go on", error=str(error))
        raise typer.Exit(1) from error
    log.info("stopped")
    if not loaded:
        # The loading thread is deep in torch, and would be torn down under its feet otherwise.
        os._exit(0)


def _run(config: ExecutorConfig, run_dir: RunDir, log: structlog.stdlib.BoundLogger) -> bool:
    """Serves until SIGTERM or SIGINT; whether the runner had been made by then."""
    lock = run_dir.lock("executor")
    mailbox = Mailbox(run_dir.executor_endpoint)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: mailbox.stop())
    log.info("started", run_dir=str(run_dir.path), lock=lock)
    try:
        # Before the model is loaded: whoever looks takes a ring for the sign that it is.
        for path in sweep_rings(run_dir.path):
            log.info("removed the frame ring of a dead executor", path=str(path))
        made = Loading(lambda: make_runner(config), mailbox, partial(beat, lock)).run()
        if made is None:
            return False
        runner, hellos = made
        ring = ExecutorRing.create(run_dir.path, runner.capacity)
        try:
            Service(mailbox, runner, ring, partial(beat, lock)).run(hellos)
        finally:
            ring.unlink()
            runner.close()
    finally:
        mailbox.close()
    return True


if __name__ == "__main__":
    typer.run(main)
