"""Validation: what a GenerateRequest asks for, checked field by field and resolved, or refused.

All of the caller's mistakes are named at once, each with the path of its field. Afterwards nothing
is absent any more: defaults are filled in, a seed is set, the model's end-of-sequence ids are among
the stop ids. What depends on the prompt's token ids is checked in prompts.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from frontend_svc import errors
from frontend_svc.errors import Violation
from frontend_svc.served_model import ServedModel
from svc_wire.frontend_link import Sampling
from svc_wire.ids import LOGPROBS_MAX, PENALTY_MAX, REPETITION_PENALTY_MIN, STOP_IDS_MAX
from twostroke.v1 import generation_pb2 as pb

REQUEST_ID_MAX = 128
TENANT_MAX = 128
EXPECTED_TOKENS_MAX = 2**31 - 1
STOP_STRINGS_MAX = 16
STOP_STRING_BYTES_MAX = 256
TEMPERATURE_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A GenerateRequest without its prompt, every field valid and present."""

    max_tokens: int | None
    """None: as many as fit."""
    min_tokens: int
    stop_strings: tuple[str, ...]
    include_stop_string: bool
    stop_ids: tuple[int, ...]
    sampling: Sampling
    priority: int
    tenant: str
    expected_tokens: int
    """0: not said."""
    wants_text: bool
    wants_token_ids: bool
    skip_special_tokens: bool
    logprobs: int | None
    """So many alternatives to each token; None: no log-probabilities."""


def check(request: pb.GenerateRequest, model: ServedModel, seed: int) -> CheckedRequest:
    """`seed` is used if the request has none. Raises Failure."""
    if request.model and request.model != model.info.name:
        raise errors.model_not_found(request.model, model.info.name)
    if violations := list(_violations(request, model)):
        raise errors.invalid(violations)
    stop, output = request.stop, request.output
    return CheckedRequest(
        max_tokens=stop.max_tokens if stop.HasField("max_tokens") else None,
        min_tokens=stop.min_tokens,
        stop_strings=tuple(stop.strings),
        include_stop_string=stop.include_stop_string,
        stop_ids=_stop_ids(stop, model),
        sampling=_resolved(request.sampling, model, seed),
        priority=request.priority,
        tenant=request.tenant,
        expected_tokens=min(stop.expected_tokens, EXPECTED_TOKENS_MAX),
        wants_text=output.text or not output.HasField("text"),
        wants_token_ids=_wants_token_ids(output),
        skip_special_tokens=output.skip_special_tokens
        or not output.HasField("skip_special_tokens"),
        logprobs=output.logprobs if output.HasField("logprobs") else None,
    )


def _wants_token_ids(output: pb.OutputOptions) -> bool:
    return output.token_ids or not output.HasField("token_ids")


def _resolved(sampling: pb.SamplingParams, model: ServedModel, seed: int) -> Sampling:
    # Keeping as many tokens as there are, or more, is no filter: off.
    top_k = sampling.top_k if sampling.top_k < model.vocab_size else 0
    return Sampling(
        temperature=sampling.temperature if sampling.HasField("temperature") else 1.0,
        top_k=top_k,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty
        if sampling.HasField("repetition_penalty")
        else 1.0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed if sampling.HasField("seed") else seed,
    )


def _stop_ids(stop: pb.StopCriteria, model: ServedModel) -> tuple[int, ...]:
    eos_ids = () if stop.ignore_eos else model.info.eos_ids
    return tuple(dict.fromkeys([*stop.token_ids, *eos_ids]))


def _violations(request: pb.GenerateRequest, model: ServedModel) -> Iterator[Violation]:
    if len(request.request_id) > REQUEST_ID_MAX:
        yield Violation("request_id", f"must have at most {REQUEST_ID_MAX} characters")
    if len(request.tenant) > TENANT_MAX:
        yield Violation("tenant", f"must have at most {TENANT_MAX} characters")
    yield from _prompt_violations(request, model)
    yield from _resume_violations(request, model)
    yield from _sampling_violations(request.sampling)
    yield from _stop_violations(request.stop, model)
    most = min(LOGPROBS_MAX, model.vocab_size)
    if request.output.logprobs > most:
        yield Violation("output.logprobs", f"must be at most {most}, is {request.output.logprobs}")


def _resume_violations(request: pb.GenerateRequest, model: ServedModel) -> Iterator[Violation]:
    if not request.HasField("resume"):
        return
    ids = request.resume.token_ids
    if not _wants_token_ids(request.output):
        yield Violation("output.token_ids", "only an answer with token ids can be resumed")
    if ids and (largest := max(ids)) >= model.vocab_size:
        message = f"token id {largest} is not in [0:{model.vocab_size})"
        yield Violation("resume.token_ids", message)


def _prompt_violations(request: pb.GenerateRequest, model: ServedModel) -> Iterator[Violation]:
    match request.WhichOneof("prompt"):
        case "text":
            if not request.text:
                yield Violation("text", "must not be empty")
        case "chat":
            yield from _chat_violations(request.chat, model)
        case "token_ids":
            if not request.token_ids.ids:
                yield Violation("token_ids.ids", "must not be empty")
        case None:
            yield Violation("prompt", "one of text, chat and token_ids must be set")


def _chat_violations(chat: pb.ChatPrompt, model: ServedModel) -> Iterator[Violation]:
    if model.tokenizer.chat_template is None:
        yield Violation("chat", "the model has no chat template; send text or token_ids")
    if not chat.messages:
        yield Violation("chat.messages", "must not be empty")
    # More messages than tokens that fit are refused later; here they must not cost time.
    for index, message in enumerate(chat.messages[: model.sequence_len_max]):
        if not message.role:
            yield Violation(f"chat.messages[{index}].role", "must not be empty")


def _sampling_violations(sampling: pb.SamplingParams) -> Iterator[Violation]:
    # NaN compares false with everything, so each bound is stated as what must be true.
    if not 0 <= sampling.temperature <= TEMPERATURE_MAX:
        yield Violation(
            "sampling.temperature",
            f"must be between 0 and {TEMPERATURE_MAX:g}, is {sampling.temperature:g}",
        )
    if sampling.HasField("top_p") and not 0 < sampling.top_p <= 1:
        yield Violation("sampling.top_p", f"must be in (0, 1], is {sampling.top_p:g}")
    if not 0 <= sampling.min_p <= 1:
        yield Violation("sampling.min_p", f"must be in [0, 1], is {sampling.min_p:g}")
    if sampling.HasField("repetition_penalty"):
        yield from _outside(sampling, "repetition_penalty", REPETITION_PENALTY_MIN, PENALTY_MAX)
    yield from _outside(sampling, "presence_penalty", -PENALTY_MAX, PENALTY_MAX)
    yield from _outside(sampling, "frequency_penalty", -PENALTY_MAX, PENALTY_MAX)


def _outside(
    sampling: pb.SamplingParams, name: str, low: float, high: float
) -> Iterator[Violation]:
    """A Violation unless the field is in [low, high]."""
    value: float = getattr(sampling, name)
    if not low <= value <= high:
        yield Violation(f"sampling.{name}", f"must be between {low:g} and {high:g}, is {value:g}")


def _stop_violations(stop: pb.StopCriteria, model: ServedModel) -> Iterator[Violation]:
    if stop.HasField("max_tokens"):
        if stop.max_tokens < 1:
            yield Violation("stop.max_tokens", "must be at least 1")
        elif stop.min_tokens > stop.max_tokens:
            yield Violation("stop.min_tokens", f"must not exceed max_tokens, {stop.max_tokens}")
    if len(stop.strings) > STOP_STRINGS_MAX:
        yield Violation("stop.strings", f"at most {STOP_STRINGS_MAX}, are {len(stop.strings)}")
    for index, string in enumerate(stop.strings[:STOP_STRINGS_MAX]):
        if not 1 <= len(string.encode()) <= STOP_STRING_BYTES_MAX:
            yield Violation(
                f"stop.strings[{index}]", f"must have 1 to {STOP_STRING_BYTES_MAX} bytes"
            )
    if len(stop.token_ids) > STOP_IDS_MAX or len(_stop_ids(stop, model)) > STOP_IDS_MAX:
        yield Violation(
            "stop.token_ids",
            f"at most {STOP_IDS_MAX}, with the model's end-of-sequence ids {model.info.eos_ids}",
        )
    for index, token_id in enumerate(stop.token_ids[:STOP_IDS_MAX]):
        if token_id >= model.vocab_size:
            yield Violation(
                f"stop.token_ids[{index}]", f"must be in [0:{model.vocab_size}), is {token_id}"
            )
