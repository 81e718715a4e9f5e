"""Client of a Twostroke server.

    from twostroke_client import Client

    with Client("localhost:50051") as client:
        for delta in client.generate("Once upon a time", max_tokens=50):
            print(delta.text, end="", flush=True)

`AsyncClient` is the same for asyncio. Errors are a tree, drawn in `twostroke_client.errors`.
"""

from twostroke_client.aio import AsyncClient, AsyncStream
from twostroke_client.client import Client, Stream
from twostroke_client.errors import (
    Cancelled,
    CannotResume,
    DeadlineExceeded,
    Draining,
    ExecutionFailed,
    ExecutorLost,
    InvalidAddress,
    InvalidRequest,
    Lost,
    ModelNotFound,
    NotReady,
    ProtocolError,
    QueueFull,
    RefusedByPolicy,
    RequestError,
    SchedulerLost,
    SlowReader,
    TooLong,
    TwostrokeError,
    Unavailable,
    UnexpectedStatus,
    Unreachable,
)
from twostroke_client.policies import PolicyState, TenantUsage
from twostroke_client.retries import RetryPolicy
from twostroke_client.values import (
    Completion,
    Delta,
    Finish,
    FinishReason,
    GenerateOptions,
    Logprob,
    Message,
    ModelInfo,
    Prompt,
    PromptInfo,
    ServerStatus,
    TokenLogprobs,
)

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Cancelled",
    "CannotResume",
    "Client",
    "Completion",
    "DeadlineExceeded",
    "Delta",
    "Draining",
    "ExecutionFailed",
    "ExecutorLost",
    "Finish",
    "FinishReason",
    "GenerateOptions",
    "InvalidAddress",
    "InvalidRequest",
    "Logprob",
    "Lost",
    "Message",
    "ModelInfo",
    "ModelNotFound",
    "NotReady",
    "PolicyState",
    "Prompt",
    "PromptInfo",
    "ProtocolError",
    "QueueFull",
    "RefusedByPolicy",
    "RequestError",
    "RetryPolicy",
    "SchedulerLost",
    "ServerStatus",
    "SlowReader",
    "Stream",
    "TenantUsage",
    "TokenLogprobs",
    "TooLong",
    "TwostrokeError",
    "Unavailable",
    "UnexpectedStatus",
    "Unreachable",
]
