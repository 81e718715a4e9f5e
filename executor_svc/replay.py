"""`twostroke replay`: runs a record again and compares what comes out, token by token.

    twostroke replay FILE                   on the model of the record
    twostroke replay FILE --model hash      on the fake, which checks blocks and positions instead

The first difference is shown and ends the replay with status 1.
"""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from executor_svc.assembly import HASH, make_runner
from executor_svc.config import ExecutorConfig
from executor_svc.errors import ExecutorError
from executor_svc.hash_runner import HashRunner
from executor_svc.recording import (
    EPOCH,
    FAILURE,
    PLAN,
    RESULT,
    Head,
    Record,
    read_result,
)
from executor_svc.runner import Runner, RunnerError
from svc_shell.logs import setup_logs
from svc_wire.errors import WireError
from svc_wire.frames import PlanFrame
from svc_wire.layout import HEADER, plan_dtype
from svc_wire.ring import FRAMES

RESULT_WAIT_S = 600.0


class Difference(Exception):
    """What came out is not what is in the record. The text says where."""


class Replay:
    """Feeds a record to a runner. `steps` and `tokens` count what was compared."""

    def __init__(self, record: Record, runner: Runner, *, compares: bool) -> None:
        self._record = record
        self._runner = runner
        self._compares = compares
        capacity = record.head.capacity
        buffers = [bytearray(plan_dtype(capacity).itemsize) for _ in range(FRAMES)]
        self._frames = [PlanFrame(buffer, capacity, writable=True) for buffer in buffers]
        self._failure = ""
        self.steps = self.tokens = 0

    def run(self) -> None:
        """Raises Difference, or RunnerError where the record knows of none."""
        for kind, payload in self._record.entries():
            if kind == EPOCH:
                self._check_failed("the record goes on with another epoch")
                self._runner.begin(int.from_bytes(payload, "little"))
            elif kind == FAILURE:
                self._check_failure(payload.decode())
            elif kind == PLAN:
                self._submit(payload)
            elif kind == RESULT:
                self._check_result(payload)
        self._check_failed("the record ends")

    def _submit(self, payload: bytes) -> None:
        self._check_failed("the record has another plan")
        header = np.frombuffer(payload, HEADER, 1)[0]
        epoch, step = int(header["epoch"]), int(header["step"])
        frame = self._frames[step % FRAMES]
        frame.raw[: len(payload)] = np.frombuffer(payload, np.uint8)
        try:
            self._runner.submit(frame.read(epoch=epoch, step=step), received_ns=0)
        except RunnerError as error:
            self._failure = f"step {step}: {error}"

    def _check_result(self, payload: bytes) -> None:
        self._check_failed("the record has a result")
        epoch, step, status, token = read_result(payload)
        result = self._runner.wait(RESULT_WAIT_S)
        if result is None or (result.epoch, result.step) != (epoch, step):
            raise Difference(f"step {step} gave no result")
        self.steps += 1
        self.tokens += int(np.count_nonzero(token >= 0))
        if not self._compares:
            return
        different = np.flatnonzero((result.row_status != status) | (result.row_token != token))
        for row in different.tolist():
            raise Difference(
                f"epoch {epoch} step {step} row {row}: recorded token {token[row]} status "
                f"{status[row]}, now token {result.row_token[row]} status {result.row_status[row]}"
            )

    def _check_failure(self, recorded: str) -> None:
        try:
            if not self._failure and self._runner.wait(RESULT_WAIT_S) is not None:
                raise Difference(f"the record has a failure, now there is none: {recorded}")
        except RunnerError:
            pass  # as recorded, while the step ran
        self._failure = ""

    def _check_failed(self, instead: str) -> None:
        if self._failure:
            raise Difference(f"{self._failure}; instead, {instead}")


def _runner_for(head: Head, model: str | None) -> Runner:
    """A runner of the record's sizes. Raises ExecutorError."""
    capacity, name = head.capacity, model or head.model.path or HASH
    if name == HASH:
        return HashRunner(capacity, eos_ids=head.model.eos_ids)
    runner = make_runner(
        ExecutorConfig(
            model=name,
            dtype=head.model.dtype,
            rows_max=capacity.rows_max,
            tokens_max=capacity.tokens_max,
            model_len_max=capacity.model_len_max,
            block_size=capacity.block_size,
            num_blocks=capacity.num_blocks,
            host_blocks=capacity.host_blocks,
        )
    )
    # How long a copy takes is measured anew, and the plans are made.
    found = msgspec.structs.replace(runner.capacity, block_copy_ns=capacity.block_copy_ns)
    if found != capacity:
        raise ExecutorError(f"{name} has {runner.capacity}, the record is of {capacity}")
    return runner


def main(
    path: Annotated[Path, typer.Argument(help="What an executor wrote with --record.")],
    model: Annotated[
        str | None,
        typer.Option(help="hash, a folder or a hub name; absent: the model of the record."),
    ] = None,
) -> None:
    """Run a record again and compare the tokens."""
    setup_logs("replay", "warning")
    try:
        record = Record(path)
        runner = _runner_for(record.head, model)
        # The fake model gives other tokens than a real one; what it can check, it checks itself.
        compares = not record.head.redacted and runner.model.dtype == record.head.model.dtype
        replay = Replay(record, runner, compares=compares)
        replay.run()
    except (Difference, RunnerError, ExecutorError, WireError) as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from error
    same = "as recorded" if compares else "run again; tokens were not compared"
    sys.stdout.write(f"{replay.steps} steps, {replay.tokens} tokens: {same}\n")


if __name__ == "__main__":
    typer.run(main)
