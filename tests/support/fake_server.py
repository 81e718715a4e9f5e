"""A fake front end: a real gRPC server in this process whose servicer answers by a script.

It stands in for frontend_svc in tests of the client. Nothing here generates text; an attempt is a
list of messages to send, an error to abort with, or an event to wait for, in order.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, Self

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from twostroke.v1 import generation_pb2 as pb
from twostroke.v1 import generation_pb2_grpc as stubs

WAIT_S_MAX = 20.0


class Abort:
    """Ends an attempt with a status and, where given, google.rpc details."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str = "because",
        *,
        reason: str = "",
        field: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        self._status = status_pb2.Status(code=code.value[0], message=message)
        if reason:
            info = error_details_pb2.ErrorInfo(reason=reason, domain="twostroke.v1")
            self._status.details.add().Pack(info)
        if field:
            violation = error_details_pb2.BadRequest.FieldViolation(field=field)
            bad = error_details_pb2.BadRequest(field_violations=[violation])
            self._status.details.add().Pack(bad)
        if retry_after_s is not None:
            delay = Duration(nanos=round(retry_after_s * 1e9) % 10**9, seconds=int(retry_after_s))
            self._status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))

    def raise_in(self, context: grpc.ServicerContext) -> NoReturn:
        context.abort_with_status(rpc_status.to_status(self._status))


Step = pb.GenerateResponse | Abort | threading.Event


def first(text: str = "", ids: Sequence[int] = ()) -> pb.GenerateResponse:
    """The first message of an answer."""
    info = pb.PromptInfo(token_count=3, request_id="r")
    return pb.GenerateResponse(prompt=info, text=text, token_ids=ids)


def more(index: int, text: str, *ids: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(first_index=index, text=text, token_ids=ids)


def last(index: int, text: str = "") -> pb.GenerateResponse:
    """The last message: one stop token, some usage and timings."""
    finish = pb.Finish(
        reason=pb.FINISH_REASON_STOP,
        token_id=2,
        usage=pb.Usage(prompt_tokens=3, output_tokens=index + 1),
        timings=pb.Timings(first_token_ms=100, total_ms=1100, executor_busy_share=0.75),
    )
    return pb.GenerateResponse(first_index=index, text=text, token_ids=[2], finish=finish)


ANSWER: tuple[Step, ...] = (first("He", [10]), more(1, "llo", 11, 12), last(3, "!"))
"""A whole answer: "Hello!"."""


class FakeServer(stubs.GenerationServiceServicer, stubs.ModelServiceServicer):
    """Each call of Generate plays the next script; the last one is played again and again."""

    def __init__(self, *scripts: Sequence[Step], port: int = 0, token: str = "") -> None:
        """`token` is what it gives for resuming."""
        self._token = token
        self._scripts = list(scripts) or [ANSWER]
        self._server = grpc.server(ThreadPoolExecutor(8))
        stubs.add_GenerationServiceServicer_to_server(self, self._server)
        stubs.add_ModelServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        self.requests: list[pb.GenerateRequest] = []
        self._arrived = threading.Semaphore(0)
        self.cancelled = threading.Event()
        """Set when a call ended before its script did."""
        self.status = pb.GetServerStatusResponse(ready=True, policy="fcfs", depth=1)

    def wait_for_requests(self, count: int) -> bool:
        """Blocks until `count` more requests have arrived; False if they do not come."""
        return all(self._arrived.acquire(timeout=WAIT_S_MAX) for _ in range(count))

    def Generate(
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
        self.requests.append(request)
        self._arrived.release()
        done = threading.Event()
        context.add_callback(lambda: None if done.is_set() else self.cancelled.set())
        if self._token:
            context.send_initial_metadata((("x-resume-token", self._token),))
        for step in script:
            match step:
                case Abort():
                    done.set()
                    step.raise_in(context)
                case threading.Event():
                    while context.is_active() and not step.wait(0.01):
                        pass
                case _:
                    yield step
        done.set()

    def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse(
            name="fake",
            sequence_length_max=128,
            vocab_size=64,
            eos_token_ids=[2],
            dtype="none",
            device="cpu",
            has_chat_template=True,
        )

    def GetServerStatus(
        self, request: pb.GetServerStatusRequest, context: grpc.ServicerContext
    ) -> pb.GetServerStatusResponse:
        return self.status

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stop(grace=None).wait(WAIT_S_MAX)
