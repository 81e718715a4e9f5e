"""A record of everything that the executor was told and what it made of it: a bug report in a file.

    magic, length, Head (JSON)                       what ran, with which sizes
    kind, length, payload                            again and again, in the order of events:
      E  epoch        int64                          an epoch begins
      P  plan         the used bytes of its frame
      R  result       int64 epoch, step; uint8[R] row_status; int32[R] row_token
      F  failure      text                           a step raised

Plans hold prompts as token ids. A redacted record holds zeros in their place: it shows rows, blocks
and steps, and can be run again, but its tokens mean nothing. Log-probabilities are left out. A
record ends at its bound; the beginning is what a replay cannot do without.
"""

import itertools
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import structlog

from executor_svc.runner import Runner, RunnerError
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.errors import WireError
from svc_wire.frames import BatchPlan, Int32s, PlanFrame, StepResult
from svc_wire.ids import NO_TOKEN
from svc_wire.layout import LAYOUT_VERSION, plan_dtype
from svc_wire.record import Bytes

MAGIC = b"TWOREC1\n"
EPOCH, PLAN, RESULT, FAILURE = b"E", b"P", b"R", b"F"
BYTES_MAX = 1 << 30
"""Of a record, unless another bound is given."""

_ENTRY = struct.Struct("<cI")  # kind, length of the payload
_STEP = struct.Struct("<qq")  # epoch, step

log = structlog.get_logger(service="executor")


class RecordError(WireError):
    """A file is no record, or cannot be written."""


class Head(msgspec.Struct, frozen=True):
    """What a record is of."""

    layout_version: int
    capacity: Capacity
    model: ModelInfo
    redacted: bool


class RecordedRunner:
    """A Runner that does what `runner` does, and writes it down."""

    def __init__(
        self, runner: Runner, path: Path, *, redacted: bool = False, bytes_max: int = BYTES_MAX
    ) -> None:
        """Takes `path`.1, .2 and so on where there are records of earlier lives.

        Raises RecordError if `path` cannot be written. A life after the first one goes on without a
        record then: it must not end what it tells of.
        """
        self._runner = runner
        self._redacted = redacted
        self._bytes_left = bytes_max
        buffer = bytearray(plan_dtype(runner.capacity).itemsize)
        self._blank = PlanFrame(buffer, runner.capacity, writable=True)
        self._file: BinaryIO | None = None
        mine = _unused(path)
        try:
            self._file = mine.open("xb")
        except OSError as error:
            if mine == path:
                raise RecordError(f"cannot write the record {path}: {error.strerror}") from error
            log.warning("this life has no record", path=str(mine), reason=error.strerror)
            return
        head = Head(LAYOUT_VERSION, runner.capacity, runner.model, redacted)
        encoded = msgspec.json.encode(head)
        self._file.write(MAGIC + struct.pack("<I", len(encoded)) + encoded)

    @property
    def capacity(self) -> Capacity:
        return self._runner.capacity

    @property
    def model(self) -> ModelInfo:
        return self._runner.model

    def begin(self, epoch: int) -> None:
        self._write(EPOCH, struct.pack("<q", epoch))
        self._runner.begin(epoch)

    def submit(self, plan: BatchPlan, received_ns: int) -> None:
        self._write(PLAN, self._redact(plan) if self._redacted else plan.raw.tobytes())
        try:
            self._runner.submit(plan, received_ns)
        except RunnerError as error:
            self._fail(error)
            raise

    def poll(self) -> StepResult | None:
        return self._take(0.0)

    def wait(self, timeout_s: float) -> StepResult | None:
        return self._take(timeout_s)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._runner.close()

    def _take(self, timeout_s: float) -> StepResult | None:
        try:
            result = self._runner.wait(timeout_s) if timeout_s else self._runner.poll()
        except RunnerError as error:
            self._fail(error)
            raise
        if result is not None:
            tokens = np.zeros_like(result.row_token) if self._redacted else result.row_token
            step = _STEP.pack(result.epoch, result.step)
            self._write(RESULT, step + result.row_status.tobytes() + tokens.tobytes())
        return result

    def _fail(self, error: RunnerError) -> None:
        self._write(FAILURE, str(error).encode())

    def _redact(self, plan: BatchPlan) -> bytes:
        """The plan's frame, sealed anew, with no token in it."""
        frame = self._blank
        frame.raw[: len(plan.raw)] = plan.raw
        # All of them: beyond this plan's counts lie tokens of the frame's former plans.
        frame.token_ids[:] = 0
        frame.stop_ids[:] = NO_TOKEN
        frame.seal(
            epoch=plan.epoch,
            step=plan.step,
            rows=plan.rows,
            tokens=plan.tokens,
            blocks=len(plan.block_ids),
            samples=plan.samples,
            copies_out=len(plan.copies_out),
            copies_in=len(plan.copies_in),
        )
        return frame.raw[: len(plan.raw)].tobytes()

    def _write(self, kind: bytes, payload: bytes) -> None:
        if self._file is None:
            return
        self._bytes_left -= _ENTRY.size + len(payload)
        if self._bytes_left < 0:
            self._end("it is as large as it may be")
            return
        try:
            self._file.write(_ENTRY.pack(kind, len(payload)) + payload)
            if kind == PLAN:  # should its step kill this process, it is what matters most
                self._file.flush()
        except OSError as error:
            self._end(str(error.strerror))

    def _end(self, reason: str) -> None:
        """Steps go on without a record; what is cut off at its end is left out by readers."""
        assert self._file is not None
        file, self._file = self._file, None
        log.warning("the record ends here", path=file.name, reason=reason)
        with suppress(OSError):  # what is buffered may not fit
            file.close()


def _unused(path: Path) -> Path:
    names = itertools.chain([path], (Path(f"{path}.{life}") for life in itertools.count(1)))
    return next(name for name in names if not name.exists())


class Record:
    """A record that is read."""

    def __init__(self, path: Path) -> None:
        """Raises RecordError."""
        try:
            self._data = path.read_bytes()
        except OSError as error:
            raise RecordError(f"cannot read {path}: {error.strerror}") from error
        size_at = len(MAGIC)
        if self._data[:size_at] != MAGIC or len(self._data) < size_at + 4:
            raise RecordError(f"{path} is not a record of an executor")
        (size,) = struct.unpack_from("<I", self._data, size_at)
        self._begin = size_at + 4 + size
        try:
            self.head = msgspec.json.decode(self._data[size_at + 4 : self._begin], type=Head)
        except msgspec.DecodeError as error:
            raise RecordError(f"{path} has no readable head: {error}") from error
        if self.head.layout_version != LAYOUT_VERSION:
            version = self.head.layout_version
            raise RecordError(f"{path} is of layout version {version}, this is {LAYOUT_VERSION}")

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """(kind, payload) of each event. One that was cut off at the end is left out."""
        at = self._begin
        while at + _ENTRY.size <= len(self._data):
            kind, size = _ENTRY.unpack_from(self._data, at)
            at += _ENTRY.size
            if at + size > len(self._data):
                return
            yield kind, self._data[at : at + size]
            at += size


def read_result(payload: bytes) -> tuple[int, int, Bytes, Int32s]:
    """epoch, step, row_status [R], row_token [R] of a RESULT."""
    epoch, step = _STEP.unpack_from(payload)
    rows = (len(payload) - _STEP.size) // 5
    status = np.frombuffer(payload, np.uint8, rows, _STEP.size)
    token = np.frombuffer(payload, "<i4", rows, _STEP.size + rows)
    return epoch, step, status, token.astype(np.int32)
