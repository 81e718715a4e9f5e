"""From a GenerateRequest to what is submitted and how its output becomes text.

All that costs time is here, in one function for a worker thread: nothing of it may hold up the
tokens of others on the event loop.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc import errors
from frontend_svc.errors import Failure, Violation
from frontend_svc.prompts import prompt_ids, resolve_max_tokens
from frontend_svc.resume import ResumeToken
from frontend_svc.served_model import ServedModel
from frontend_svc.stop_strings import StopStrings
from frontend_svc.text_stream import TextStream
from frontend_svc.tokenizer import Tokenizer
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
    token: ResumeToken
    """With which another front end can go on with it."""
    tokenizer: Tokenizer


def prepare(
    request: pb.GenerateRequest,
    model: ServedModel,
    key: int,
    fresh: ResumeToken,
    deadline_ns: int = 0,
) -> Prepared:
    """`fresh` is for an answer that begins; `deadline_ns` is Submit's. Raises Failure."""
    resumes = request.HasField("resume")
    token = ResumeToken.parse(request.resume.token, model) if resumes else fresh
    checked = check(request, model, token.seed)
    ids, output = prompt_ids(request, model), request.resume.token_ids
    submit = Submit(
        key=key,
        prompt=array("i", ids).tobytes(),
        output=array("i", output).tobytes(),
        stream=token.stream,
        max_tokens=resolve_max_tokens(checked, len(ids), model),
        min_tokens=checked.min_tokens,
        stop_ids=checked.stop_ids,
        sampling=checked.sampling,
        priority=checked.priority,
        tenant=checked.tenant,
        expected_tokens=checked.expected_tokens,
        logprobs=checked.logprobs,
        deadline_ns=deadline_ns,
    )
    if len(output) >= submit.max_tokens:
        raise _not_the_output(f"are all of the {submit.max_tokens} tokens that there can be")
    if not set(output).isdisjoint(submit.stop_ids):
        raise _not_the_output("go on past a stop token, or end with one: nothing follows")
    text = _text_stream(checked, model)
    if text is not None:
        _replay(text, output)
    return Prepared(submit, text, checked, len(ids), token, model.tokenizer)


def _text_stream(checked: CheckedRequest, model: ServedModel) -> TextStream | None:
    if not (checked.wants_text or checked.stop_strings):
        return None
    return TextStream(
        model.tokenizer.detokenizer(skip_special_tokens=checked.skip_special_tokens),
        StopStrings(checked.stop_strings) if checked.stop_strings else None,
        include_match=checked.include_stop_string,
    )


def _replay(text: TextStream, output: Sequence[int]) -> None:
    """Brings it to where it was after these ids. The client has the text up to there: each message
    brings all that its ids gave."""
    for index, token_id in enumerate(output):
        if text.matched is not None:
            raise _not_the_output(f"go on past a stop string, at index {index}")
        text.push(token_id)


def _not_the_output(why: str) -> Failure:
    return errors.invalid([Violation("resume.token_ids", why)])
