"""One sample of every message: for golden bytes, and as the seed of the fuzzing."""

from typing import Any

from svc_wire import executor_link, frontend_link
from svc_wire.capacity import ModelInfo
from svc_wire.codec import Codec, Message
from svc_wire.executor_link import Beat, Hello, PlanReady, Refused, StepDone, StepFailed, Welcome
from svc_wire.frontend_link import (
    STREAM_BYTES,
    Abort,
    AskPolicy,
    Attach,
    Attached,
    Detach,
    Finished,
    Outputs,
    Pace,
    Ping,
    PolicyInForce,
    Rejected,
    Sampling,
    Status,
    Submit,
    TenantUsage,
    Unknown,
)
from svc_wire.ids import FinishReason, RejectReason
from tests.support.plans import SMALL

MODEL = ModelInfo(name="tiny", path="/models/tiny", eos_ids=(2, 3), dtype="float32", device="cpu")

FINISHED = Finished(
    key=7, reason=FinishReason.STOP_TOKEN, message="", prompt_tokens=5, cached_tokens=4,
    output_tokens=3, preemptions=1, queued_ns=10, running_ns=20, busy_share=0.5,
)  # fmt: skip

PACE = Pace(0.75, 3_000_000, 20_000, 90_000, 10**12, 80, 240_000_000, 1_600_000)

LINKS: dict[str, tuple[Codec[Any], list[Message]]] = {
    "executor_link.to_executor": (
        executor_link.to_executor,
        [Hello(1, 41), PlanReady(42, 7), Beat(42, 7)],
    ),
    "executor_link.to_scheduler": (
        executor_link.to_scheduler,
        [
            Welcome(1, 42, "/run/ring-1", SMALL, MODEL, 41, 9),
            Refused("another version"),
            StepDone(42, 7),
            StepFailed(42, 8, "out of memory"),
            Beat(42, 2**40 - 1),
        ],
    ),
    "frontend_link.to_scheduler": (
        frontend_link.to_scheduler,
        [
            Attach(1, "frontend-0"),
            Submit(7, b"\1\0\0\0\2\0\0\0", 16),
            Submit(
                2**64 - 1, b"\1\0\0\0", 16, 2, (2, 3), Sampling(0.5, 40, 0.9, 0.1, -1), 9, "tenant"
            ),
            Submit(7, b"\1\0\0\0", 16, output=b"\5\0\0\0", was_accepted=True),
            Abort(7, FinishReason.DEADLINE),
            Ping(),
            Detach(),
            AskPolicy(3, "fair", {"weight.a": "2"}),
            Submit(8, b"\1\0\0\0", 4, expected_tokens=2, deadline_ns=10**18),
            Submit(
                9,
                b"\1\0\0\0",
                4,
                sampling=Sampling(
                    repetition_penalty=1.5, presence_penalty=-0.5, frequency_penalty=0.25
                ),
                logprobs=1,
            ),
            Submit(9, b"\1\0\0\0", 4, stream=bytes(range(STREAM_BYTES))),
        ],
    ),
    "frontend_link.to_frontend": (
        frontend_link.to_frontend,
        [
            Attached(1, MODEL, 50, 21),
            Unknown(),
            Rejected(7, RejectReason.TOO_LONG, "too long"),
            Outputs(b"\7" + bytes(7), bytes(4), b"\5\0\0\0", (FINISHED,)),
            Outputs(b"", b"", b"", ()),
            Outputs(
                b"\7" + bytes(7),
                bytes(4),
                b"\5\0\0\0",
                (),
                b"\2",
                b"\5\0\0\0\6\0\0\0",
                b"\0\0\x80\xbf\0\0\0\xc0",
            ),
            Status(True, "", "fcfs", 1, 2, 3, 12, 5, 100, 90, 1, 1, 0, 2, 3, PACE),
            PolicyInForce(
                3, "", "fair", ("fcfs",), 1, "it raised", 2, (TenantUsage("a", 1, 2, 3, 4, 5),)
            ),
        ],
    ),
}
