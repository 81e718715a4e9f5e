"""What goes in and comes out, as immutable values; the only module that knows the proto's fields.

prompt, options  ──build_request()──►  GenerateRequest
GenerateResponse ──delta_from()─────►  Delta
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, cast

from google.protobuf.message import Message as ProtoMessage

from twostroke.v1 import generation_pb2 as pb
from twostroke_client.errors import InvalidRequest, ProtocolError


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    """"system", "user", "assistant", or what the model's template knows."""
    content: str


DEFAULT_ADDRESS = "localhost:50051"

Prompt = str | Sequence[Message] | Sequence[int]
"""Raw text, a conversation for the model's chat template, or token ids."""


class GenerateOptions(TypedDict, total=False):
    """How to continue a prompt. Absent or None: the server's default, as the proto documents it."""

    model: str | None
    request_id: str | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    max_tokens: int | None
    min_tokens: int | None
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_string: bool | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    logprobs: int | None
    priority: int | None
    tenant: str | None
    expected_tokens: int | None


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """max_tokens, or the model's context, is used up."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an answer, with what it cost. Durations as the server saw them; if the answer was
    resumed, the first token's and the total as this client did."""

    reason: FinishReason
    matched: int | str | None
    """The stop token's id or the stop string, for FinishReason.STOP."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that the prefix cache spared."""
    output_tokens: int
    preemptions: int
    queued_ms: float
    first_token_ms: float
    total_ms: float
    executor_busy_share: float
    """Share of the time since the first step in which the executor computed, 0 to 1."""

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of the tokens after the first one; None if there are none."""
        seconds = (self.total_ms - self.first_token_ms) / 1e3
        return (
            (self.output_tokens - 1) / seconds if self.output_tokens > 1 and seconds > 0 else None
        )


@dataclass(frozen=True, slots=True)
class PromptInfo:
    """The prompt as the server understood it."""

    token_count: int
    request_id: str


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural logarithm of a token's probability in the model's own distribution."""

    token_id: int
    text: str
    """By itself; U+FFFD stands for a part of a character."""
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model thought of a token and of others in its place."""

    chosen: Logprob
    top: tuple[Logprob, ...]
    """The most likely ones, the first first; the chosen one too if it is among them."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer; the whole is the concatenation of its pieces."""

    text: str
    """May lag behind the tokens: part of a character or of a stop string is held back."""
    token_ids: tuple[int, ...]
    first_index: int
    """Index of the first of `token_ids` among the output tokens; the count so far if none."""
    prompt: PromptInfo | None
    """In the first piece only."""
    finish: Finish | None
    """In the last piece only."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, if `logprobs` was asked for."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    prompt: PromptInfo
    finish: Finish
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, if `logprobs` was asked for."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served."""

    name: str
    sequence_length_max: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str
    has_chat_template: bool


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The scheduler's counters of one moment."""

    ready: bool
    reason: str
    """Why the server is not ready; empty if it is."""
    policy: str
    depth: int
    waiting: int
    running: int
    blocks_total: int
    blocks_free: int
    steps: int
    output_tokens: int
    preemptions: int
    swaps_out: int
    """Pre-emptions after which the KV was copied to host memory instead of being dropped."""
    swaps_in: int
    """Requests that went on from such a copy."""
    epochs_lost: int
    """How often the executor was lost: it died, failed or was replaced."""
    executor_busy_share: float
    """Share of the last seconds in which the executor computed, 0 to 1."""
    host_lead_ms: float
    """How long before it was needed the next batch lay ready on the device, mean of the last
    seconds."""
    step_gap_ms: float
    """Between two steps, where work was there: mean of the last seconds."""
    step_gap_ms_max: float
    """The longest one of the last seconds."""


_PATHS = {
    "model": "model",
    "request_id": "request_id",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "min_p": "sampling.min_p",
    "seed": "sampling.seed",
    "repetition_penalty": "sampling.repetition_penalty",
    "presence_penalty": "sampling.presence_penalty",
    "frequency_penalty": "sampling.frequency_penalty",
    "max_tokens": "stop.max_tokens",
    "min_tokens": "stop.min_tokens",
    "stop": "stop.strings",
    "stop_token_ids": "stop.token_ids",
    "include_stop_string": "stop.include_stop_string",
    "ignore_eos": "stop.ignore_eos",
    "skip_special_tokens": "output.skip_special_tokens",
    "logprobs": "output.logprobs",
    "priority": "priority",
    "tenant": "tenant",
    "expected_tokens": "stop.expected_tokens",
}
assert _PATHS.keys() == GenerateOptions.__annotations__.keys()


def build_request(prompt: Prompt, options: GenerateOptions) -> pb.GenerateRequest:
    """The request for a prompt. Raises InvalidRequest for what a field cannot hold at all.

    Whatever a field can hold goes to the server, which alone knows the limits.
    """
    request = pb.GenerateRequest()
    match prompt:
        case str():
            _set(request, "text", prompt)
        case [Message(), *_]:
            turns = cast("Sequence[Message]", prompt)
            _set(request, "chat.messages", [_turn(message) for message in turns])
        case _:
            _set(request, "token_ids.ids", prompt)
    for option, value in options.items():
        if option not in _PATHS:
            raise TypeError(f"generate has no option {option!r}")
        if value is not None:
            _set(request, _PATHS[option], value)
    return request


def resuming(
    request: pb.GenerateRequest, token: str, token_ids: Sequence[int]
) -> pb.GenerateRequest:
    """What asks for the rest of an answer of which these tokens have come."""
    rest = pb.GenerateRequest()
    rest.CopyFrom(request)
    rest.resume.token = token
    rest.resume.token_ids.extend(token_ids)
    return rest


def _turn(message: Message) -> pb.ChatMessage:
    turn = pb.ChatMessage()
    _set(turn, "role", message.role)
    _set(turn, "content", message.content)
    return turn


def _set(request: ProtoMessage, path: str, value: object) -> None:
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, request)
    try:
        if owner.DESCRIPTOR.fields_by_name[name].is_repeated:
            getattr(owner, name).extend(value)
        else:
            setattr(owner, name, value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{path} cannot be {value!r:.60}: {error}", path) from error


def delta_from(message: pb.GenerateResponse) -> Delta:
    """One message of the stream as a value. Raises ProtocolError for a finish without a reason."""
    prompt = message.prompt
    return Delta(
        text=message.text,
        token_ids=tuple(message.token_ids),
        first_index=message.first_index,
        prompt=PromptInfo(prompt.token_count, prompt.request_id)
        if message.HasField("prompt")
        else None,
        finish=_finish_from(message.finish) if message.HasField("finish") else None,
        logprobs=tuple(
            TokenLogprobs(_logprob_from(entry.chosen), tuple(map(_logprob_from, entry.top)))
            for entry in message.logprobs
        ),
    )


def _logprob_from(message: pb.Logprob) -> Logprob:
    return Logprob(message.token_id, message.text, message.logprob)


_REASONS = {
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


def _finish_from(finish: pb.Finish) -> Finish:
    if finish.reason not in _REASONS:
        raise ProtocolError(f"the server ended the answer with the unknown reason {finish.reason}")
    matched = finish.WhichOneof("matched")
    usage, timings = finish.usage, finish.timings
    return Finish(
        reason=_REASONS[finish.reason],
        matched=getattr(finish, matched) if matched else None,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        preemptions=usage.preemptions,
        queued_ms=timings.queued_ms,
        first_token_ms=timings.first_token_ms,
        total_ms=timings.total_ms,
        executor_busy_share=timings.executor_busy_share,
    )


def model_info_from(message: pb.GetModelInfoResponse) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        sequence_length_max=message.sequence_length_max,
        vocab_size=message.vocab_size,
        eos_token_ids=tuple(message.eos_token_ids),
        dtype=message.dtype,
        device=message.device,
        has_chat_template=message.has_chat_template,
    )


def server_status_from(message: pb.GetServerStatusResponse) -> ServerStatus:
    return ServerStatus(**{name: getattr(message, name) for name in ServerStatus.__annotations__})
