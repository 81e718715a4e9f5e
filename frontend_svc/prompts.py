"""From a prompt to its token ids, and whether it fits. Runs in worker threads: big prompts take
long.
"""

from collections.abc import Sequence

from frontend_svc import errors
from frontend_svc.chat_template import ChatTemplateError
from frontend_svc.errors import Violation
from frontend_svc.served_model import ServedModel
from frontend_svc.validation import CheckedRequest
from twostroke.v1 import generation_pb2 as pb


def prompt_ids(request: pb.GenerateRequest, model: ServedModel) -> Sequence[int]:
    """The ids of a validated request's prompt, all in [0:vocab_size). Raises Failure."""
    ids: Sequence[int]
    kind: str
    match request.WhichOneof("prompt"):
        case "text":
            kind = "text"
            ids = _encode("text", request.text, model, add_special_tokens=True)
        case "chat":
            # The template writes the special tokens itself, the beginning token included.
            kind = "chat"
            text = _render(request.chat, model)
            ids = _encode("chat", text, model, add_special_tokens=False)
        case "token_ids":
            kind = "token_ids.ids"
            ids = request.token_ids.ids
        case None:
            raise AssertionError("a validated request has a prompt")
    _check_length(kind, len(ids), model)
    if not ids:
        raise errors.invalid([Violation(kind, "has no tokens")])
    if (largest := max(ids)) >= model.vocab_size:
        raise errors.invalid(
            [Violation(kind, f"token id {largest} is not in [0:{model.vocab_size})")]
        )
    return ids


def resolve_max_tokens(checked: CheckedRequest, prompt_len: int, model: ServedModel) -> int:
    """The most tokens to generate after a prompt that fits. Raises Failure."""
    room = model.sequence_len_max - prompt_len
    if checked.max_tokens is None:
        if checked.min_tokens > room:
            raise errors.too_long(
                "stop.min_tokens", _sum("min_tokens", prompt_len, checked.min_tokens, model)
            )
        return room
    if checked.max_tokens > room:
        raise errors.too_long(
            "stop.max_tokens", _sum("max_tokens", prompt_len, checked.max_tokens, model)
        )
    return checked.max_tokens


def _sum(name: str, prompt_len: int, tokens: int, model: ServedModel) -> str:
    return (
        f"the prompt's {prompt_len} tokens and {name}, {tokens}, make {prompt_len + tokens}; "
        f"at most {model.sequence_len_max} fit"
    )


def _check_length(kind: str, count: int, model: ServedModel, at_least: str = "") -> None:
    if count >= model.sequence_len_max:
        raise errors.too_long(
            kind,
            f"the prompt has {at_least}{count} tokens; "
            f"prompt and output together have at most {model.sequence_len_max}",
        )


def _encode(kind: str, text: str, model: ServedModel, *, add_special_tokens: bool) -> list[int]:
    # Tokenising takes half a second a megabyte; what cannot fit is told from its size.
    at_least = len(text.encode()) // model.tokenizer.token_bytes_max
    _check_length(kind, at_least, model, "at least ")
    return model.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _render(chat: pb.ChatPrompt, model: ServedModel) -> str:
    template = model.tokenizer.chat_template
    assert template is not None, "a validated chat has a template"
    _check_length("chat.messages", len(chat.messages), model, "at least ")
    messages = [{"role": message.role, "content": message.content} for message in chat.messages]
    add_prompt = chat.add_generation_prompt or not chat.HasField("add_generation_prompt")
    try:
        return template.render(messages, add_generation_prompt=add_prompt)
    except ChatTemplateError as error:
        raise errors.invalid(
            [Violation("chat.messages", f"the model's chat template refuses them: {error}")]
        ) from error
