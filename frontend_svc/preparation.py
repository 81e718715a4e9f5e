"""From a GenerateRequest to what is submitted and how its output becomes text.

All that costs time is here, in one function for a worker thread: nothing of it may hold up the
tokens of others on the event loop.
"""

from array import array
from dataclasses import dataclass

from frontend_svc.prompts import prompt_ids, resolve_max_tokens
from frontend_svc.served_model import ServedModel
from frontend_svc.stop_strings import StopStrings
from frontend_svc.text_stream import TextStream
from frontend_svc.validation import CheckedRequest, check
from svc_wire.frontend_link import Submit
from twostroke.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be submitted."""

    submit: Submit
    text: TextStream | None
    """None if neither text nor stop strings are asked for."""
    checked: CheckedRequest
    prompt_len: int


def prepare(
    request: pb.GenerateRequest, model: ServedModel, key: int, seed: int, deadline_ns: int = 0
) -> Prepared:
    """`seed` is used if the request has none; `deadline_ns` is Submit's. Raises Failure."""
    checked = check(request, model, seed)
    ids = prompt_ids(request, model)
    submit = Submit(
        key=key,
        prompt=array("i", ids).tobytes(),
        max_tokens=resolve_max_tokens(checked, len(ids), model),
        min_tokens=checked.min_tokens,
        stop_ids=checked.stop_ids,
        sampling=checked.sampling,
        priority=checked.priority,
        tenant=checked.tenant,
        expected_tokens=checked.expected_tokens,
        deadline_ns=deadline_ns,
    )
    return Prepared(submit, _text_stream(checked, model), checked, len(ids))


def _text_stream(checked: CheckedRequest, model: ServedModel) -> TextStream | None:
    if not (checked.wants_text or checked.stop_strings):
        return None
    return TextStream(
        model.tokenizer.detokenizer(skip_special_tokens=checked.skip_special_tokens),
        StopStrings(checked.stop_strings) if checked.stop_strings else None,
        include_match=checked.include_stop_string,
    )
