"""What a GenerateRequest becomes, and what is wrong with those that are refused."""

import math
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from frontend_svc.errors import Failure
from frontend_svc.preparation import Prepared, prepare
from frontend_svc.resume import ResumeToken
from frontend_svc.served_model import ServedModel, load_model
from svc_wire.capacity import ModelInfo
from svc_wire.frontend_link import STREAM_BYTES, Attached, Sampling
from tests.support import tokenizers
from tests.support.fake_scheduler import EOS, prompt_of
from tests.support.frontend import NOON
from twostroke.v1 import generation_pb2 as pb

SEED = 77
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'bad' %}{{ raise_exception('no ' ~ m.role) }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def served(path: str = "", vocab_size: int = 300, eos_ids: tuple[int, ...] = (EOS,)) -> ServedModel:
    info = ModelInfo(name="fake", path=path, eos_ids=eos_ids, dtype="none", device="none")
    return load_model(Attached(1, info, vocab_size, 100), None, lambda: NOON)


BYTES = served()


@pytest.fixture
def chatty(tmp_path: Path) -> ServedModel:
    """A model with a tokenizer and a chat template."""
    config = {"bos_token": tokenizers.BOS}
    return served(str(tokenizers.save(tokenizers.byte_level(), tmp_path, config, TEMPLATE)))


def fresh(model: ServedModel) -> ResumeToken:
    return ResumeToken(SEED, model.mark, bytes(STREAM_BYTES))


def ready(request: pb.GenerateRequest, model: ServedModel = BYTES) -> Prepared:
    if request.WhichOneof("prompt") is None:
        request.text = "hi"
    return prepare(request, model, 5, fresh(model))


def refused(request: pb.GenerateRequest, model: ServedModel = BYTES) -> Failure:
    with pytest.raises(Failure) as caught:
        prepare(request, model, 5, fresh(model))
    return caught.value


# -- what is taken ---------------------------------------------------------------------------------


def test_all_that_is_absent_gets_its_default() -> None:
    prepared = ready(pb.GenerateRequest())
    submit, checked = prepared.submit, prepared.checked
    assert submit.sampling == Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=SEED)
    assert (submit.key, prompt_of(submit), prepared.prompt_len) == (5, [104, 105], 2)
    assert (submit.max_tokens, submit.min_tokens, submit.priority) == (98, 0, 0)
    assert submit.stop_ids == (EOS,)
    assert (checked.wants_text, checked.wants_token_ids, checked.skip_special_tokens) == (
        True,
        True,
        True,
    )


def test_all_that_is_given_arrives() -> None:
    request = pb.GenerateRequest(
        model="fake",
        request_id="x" * 128,
        sampling=pb.SamplingParams(
            temperature=0,
            top_k=7,
            top_p=0.5,
            min_p=0.25,
            seed=-(2**63),
            repetition_penalty=2,
            presence_penalty=-2,
            frequency_penalty=0.5,
        ),
        stop=pb.StopCriteria(
            max_tokens=98,
            min_tokens=98,
            strings=["é" * 128],
            token_ids=[7, 7, 299],
            ignore_eos=True,
        ),
        output=pb.OutputOptions(
            text=False, token_ids=False, skip_special_tokens=False, logprobs=20
        ),
        priority=-3,
    )
    prepared = ready(request)
    submit, checked = prepared.submit, prepared.checked
    assert submit.sampling == Sampling(
        temperature=0.0,
        top_k=7,
        top_p=0.5,
        min_p=0.25,
        seed=-(2**63),
        repetition_penalty=2.0,
        presence_penalty=-2.0,
        frequency_penalty=0.5,
    )
    assert submit.logprobs == 20
    assert (submit.max_tokens, submit.min_tokens, submit.priority) == (98, 98, -3)
    assert submit.stop_ids == (7, 299)
    assert (checked.wants_text, checked.wants_token_ids, checked.skip_special_tokens) == (
        False,
        False,
        False,
    )
    assert prepared.text is not None, "stop strings need the text even if nobody else does"


def test_the_smallest_repetition_penalty_is_a_hundredth() -> None:
    """Which is a little less when it has come as a float32."""
    request = pb.GenerateRequest(sampling=pb.SamplingParams(repetition_penalty=0.01))
    assert ready(request).submit.sampling.repetition_penalty == pytest.approx(0.01)


def test_own_log_probabilities_only_are_not_none() -> None:
    assert ready(pb.GenerateRequest()).submit.logprobs is None
    request = pb.GenerateRequest(output=pb.OutputOptions(logprobs=0))
    assert ready(request).submit.logprobs == 0


def test_text_that_nobody_needs_is_not_made() -> None:
    assert ready(pb.GenerateRequest(output=pb.OutputOptions(text=False))).text is None


def test_a_filter_that_keeps_everything_is_off() -> None:
    for top_k, resolved in ((299, 299), (300, 0), (2**32 - 1, 0)):
        request = pb.GenerateRequest(sampling=pb.SamplingParams(top_k=top_k))
        assert ready(request).submit.sampling.top_k == resolved


def test_eight_stop_ids_fit_with_the_models_own() -> None:
    for ids in ([*range(7)], [*range(7), EOS]):
        request = pb.GenerateRequest(stop=pb.StopCriteria(token_ids=ids))
        assert ready(request).submit.stop_ids == (*range(7), EOS)


def test_token_ids_are_used_as_they_are() -> None:
    ids = [299, 0, EOS, 0]
    assert prompt_of(ready(pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids))).submit) == ids


def chat(*turns: tuple[str, str], add_generation_prompt: bool | None = None) -> pb.ChatPrompt:
    return pb.ChatPrompt(
        messages=[pb.ChatMessage(role=role, content=content) for role, content in turns],
        add_generation_prompt=add_generation_prompt,
    )


def test_a_chat_is_rendered_and_gets_no_second_beginning(chatty: ServedModel) -> None:
    def ids(prompt: pb.ChatPrompt) -> list[int]:
        return prompt_of(ready(pb.GenerateRequest(chat=prompt), chatty).submit)

    encode = chatty.tokenizer.encode
    turns = (("user", "Hi"), ("x", ""))
    assert ids(chat(*turns)) == encode("[user]Hi[x]>", add_special_tokens=False)
    assert ids(chat(*turns, add_generation_prompt=False)) == encode(
        "[user]Hi[x]", add_special_tokens=False
    )


# -- what is refused -------------------------------------------------------------------------------


def bad_requests() -> Iterator[tuple[pb.GenerateRequest, str]]:
    """Requests with one fault each, and the path of the field at fault."""
    yield pb.GenerateRequest(), "prompt"
    yield pb.GenerateRequest(text=""), "text"
    yield pb.GenerateRequest(token_ids=pb.TokenIds()), "token_ids.ids"
    yield pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 300])), "token_ids.ids"
    yield pb.GenerateRequest(token_ids=pb.TokenIds(ids=[2**32 - 1])), "token_ids.ids"
    yield pb.GenerateRequest(chat=chat(("user", "x"))), "chat"
    yield pb.GenerateRequest(text="x", request_id="é" * 129), "request_id"
    for temperature in (-0.1, 10.5, math.nan, math.inf, -math.inf):
        sampling = pb.SamplingParams(temperature=temperature)
        yield pb.GenerateRequest(text="x", sampling=sampling), "sampling.temperature"
    for top_p in (0.0, -1.0, 1.5, math.nan, math.inf):
        sampling = pb.SamplingParams(top_p=top_p)
        yield pb.GenerateRequest(text="x", sampling=sampling), "sampling.top_p"
    for min_p in (-0.5, 1.5, math.nan, -math.inf):
        sampling = pb.SamplingParams(min_p=min_p)
        yield pb.GenerateRequest(text="x", sampling=sampling), "sampling.min_p"
    for value in (0.0, -1.0, 0.009, 2.001, math.nan, math.inf):
        sampling = pb.SamplingParams(repetition_penalty=value)
        yield pb.GenerateRequest(text="x", sampling=sampling), "sampling.repetition_penalty"
    for value in (-2.001, 2.001, math.nan, -math.inf):
        sampling = pb.SamplingParams(presence_penalty=value)
        yield pb.GenerateRequest(text="x", sampling=sampling), "sampling.presence_penalty"
        sampling = pb.SamplingParams(frequency_penalty=value)
        yield pb.GenerateRequest(text="x", sampling=sampling), "sampling.frequency_penalty"
    output = pb.OutputOptions(logprobs=21)
    yield pb.GenerateRequest(text="x", output=output), "output.logprobs"
    for field, stop in {
        "stop.max_tokens": pb.StopCriteria(max_tokens=0),
        "stop.min_tokens": pb.StopCriteria(max_tokens=3, min_tokens=4),
        "stop.strings": pb.StopCriteria(strings=["x"] * 17),
        "stop.strings[1]": pb.StopCriteria(strings=["x", ""]),
        "stop.strings[0]": pb.StopCriteria(strings=["é" * 129]),
        "stop.token_ids": pb.StopCriteria(token_ids=range(8)),
        "stop.token_ids[1]": pb.StopCriteria(token_ids=[1, 300]),
    }.items():
        yield pb.GenerateRequest(text="x", stop=stop), field


@pytest.mark.parametrize(("request_", "field"), [*bad_requests()])
def test_a_wrong_field_is_named(request_: pb.GenerateRequest, field: str) -> None:
    failure = refused(request_)
    assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.reason == "INVALID_FIELD"
    assert [violation.field for violation in failure.violations] == [field]
    assert field in failure.message


def test_all_faults_are_named_at_once() -> None:
    failure = refused(
        pb.GenerateRequest(
            sampling=pb.SamplingParams(temperature=-1, top_p=2), stop=pb.StopCriteria(max_tokens=0)
        )
    )
    assert [violation.field for violation in failure.violations] == [
        "prompt",
        "sampling.temperature",
        "sampling.top_p",
        "stop.max_tokens",
    ]


def test_another_model_is_not_found() -> None:
    failure = refused(pb.GenerateRequest(text="x", model="other"))
    assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "INVALID_FIELD")
    assert "'fake'" in failure.message
    assert "'other'" in failure.message


def test_a_chat_names_what_is_wrong_in_it(chatty: ServedModel) -> None:
    for prompt, field in (
        (chat(), "chat.messages"),
        (chat(("user", "x"), ("", "y")), "chat.messages[1].role"),
    ):
        failure = refused(pb.GenerateRequest(chat=prompt), chatty)
        assert [violation.field for violation in failure.violations] == [field]
    failure = refused(pb.GenerateRequest(chat=chat(("bad", "x"))), chatty)
    assert failure.reason == "INVALID_FIELD"
    assert "no bad" in failure.message


def long_requests() -> Iterator[tuple[pb.GenerateRequest, str, list[int]]]:
    """Requests that do not fit in 100 tokens, the field at fault, and numbers to be told."""
    yield pb.GenerateRequest(text="x" * 100), "text", [100]
    yield pb.GenerateRequest(text="x" * 10_000_000), "text", [10_000_000, 100]
    yield pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * 100)), "token_ids.ids", [100]
    # Too long comes before out of range: looking at all ids of a huge prompt takes time.
    yield pb.GenerateRequest(token_ids=pb.TokenIds(ids=[999] * 200)), "token_ids.ids", [200]
    stop = pb.StopCriteria(max_tokens=51)
    yield pb.GenerateRequest(text="x" * 50, stop=stop), "stop.max_tokens", [50, 51, 101, 100]
    stop = pb.StopCriteria(max_tokens=2**32 - 1)
    yield pb.GenerateRequest(text="x", stop=stop), "stop.max_tokens", [2**32 - 1]
    stop = pb.StopCriteria(min_tokens=60)
    yield pb.GenerateRequest(text="x" * 50, stop=stop), "stop.min_tokens", [50, 60, 110, 100]


@pytest.mark.parametrize(("request_", "field", "numbers"), [*long_requests()])
def test_what_does_not_fit_is_told_with_numbers(
    request_: pb.GenerateRequest, field: str, numbers: list[int]
) -> None:
    failure = refused(request_)
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "TOO_LONG")
    assert [violation.field for violation in failure.violations] == [field]
    for number in numbers:
        assert str(number) in failure.message


def test_what_just_fits_is_taken() -> None:
    assert ready(pb.GenerateRequest(text="x" * 99)).submit.max_tokens == 1
    request = pb.GenerateRequest(text="x" * 50, stop=pb.StopCriteria(max_tokens=50))
    assert ready(request).submit.max_tokens == 50


def test_a_huge_conversation_is_told_from_its_size(chatty: ServedModel) -> None:
    for prompt in (chat(*[("user", "")] * 200), chat(("user", "x" * 1_000_000))):
        failure = refused(pb.GenerateRequest(chat=prompt), chatty)
        assert failure.reason == "TOO_LONG"
        assert "at least" in failure.message, "without rendering or tokenising it"


def test_a_tokenizer_larger_than_the_model_cannot_hurt_it() -> None:
    failure = refused(pb.GenerateRequest(text="aé"), served(vocab_size=128, eos_ids=()))
    assert (failure.reason, failure.violations[0].field) == ("INVALID_FIELD", "text")


def test_every_unicode_goes_through() -> None:
    for text in ("\x00", "\ufffe\uffff", "\U0010ffff", "\u202e", "e\u0301", "👩‍👩‍👧"):
        assert bytes(prompt_of(ready(pb.GenerateRequest(text=text)).submit)).decode() == text
