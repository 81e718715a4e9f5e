"""Requests as they are built: every option in its field; what does not fit is named."""

import pytest

from twostroke.v1 import generation_pb2 as pb
from twostroke_client import GenerateOptions, InvalidRequest, Message, ProtocolError
from twostroke_client.values import build_request, delta_from

ALL: GenerateOptions = {
    "model": "m",
    "request_id": "r",
    "temperature": 0.5,
    "top_k": 4,
    "top_p": 0.25,
    "min_p": 0.125,
    "seed": -3,
    "repetition_penalty": 1.5,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.75,
    "logprobs": 3,
    "max_tokens": 9,
    "min_tokens": 2,
    "stop": ["a", "b"],
    "stop_token_ids": [7],
    "include_stop_string": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "priority": -1,
    "tenant": "t",
    "expected_tokens": 5,
}


def test_every_option_has_its_field() -> None:
    assert ALL.keys() == GenerateOptions.__annotations__.keys()
    assert build_request("hi", ALL) == pb.GenerateRequest(
        text="hi",
        model="m",
        request_id="r",
        priority=-1,
        tenant="t",
        sampling=pb.SamplingParams(
            temperature=0.5,
            top_k=4,
            top_p=0.25,
            min_p=0.125,
            seed=-3,
            repetition_penalty=1.5,
            presence_penalty=-0.5,
            frequency_penalty=0.75,
        ),
        stop=pb.StopCriteria(
            max_tokens=9,
            min_tokens=2,
            strings=["a", "b"],
            token_ids=[7],
            include_stop_string=True,
            ignore_eos=True,
            expected_tokens=5,
        ),
        output=pb.OutputOptions(skip_special_tokens=False, logprobs=3),
    )


def test_absent_options_stay_absent() -> None:
    assert build_request("hi", {"top_k": None}) == pb.GenerateRequest(text="hi")


def test_the_three_kinds_of_prompt() -> None:
    chat = build_request([Message("system", "s"), Message("user", "u")], {})
    assert [(m.role, m.content) for m in chat.chat.messages] == [("system", "s"), ("user", "u")]
    assert list(build_request([5, 6], {}).token_ids.ids) == [5, 6]
    assert build_request("", {}).WhichOneof("prompt") == "text"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"top_k": -5}, "sampling.top_k"),
        ({"max_tokens": 2**32}, "stop.max_tokens"),
        ({"seed": 2**63}, "sampling.seed"),
        ({"temperature": "hot"}, "sampling.temperature"),
        ({"stop": ["ok", 3]}, "stop.strings"),
        ({"stop_token_ids": [-1]}, "stop.token_ids"),
        ({"model": "\ud800"}, "model"),
    ],
)
def test_what_does_not_fit_its_field_is_named(options: GenerateOptions, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field.replace(".", r"\.")) as caught:
        build_request("hi", options)
    assert caught.value.field == field


@pytest.mark.parametrize("prompt", ["\ud800", [Message("user", "\ud800")], [-1], [1, "x"]])
def test_a_prompt_that_cannot_be_sent(prompt: str) -> None:
    with pytest.raises(InvalidRequest):
        build_request(prompt, {})


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'heat'"):
        build_request("hi", {"heat": 1})  # type: ignore[typeddict-unknown-key]


def test_a_stop_string_is_text_and_a_stop_token_a_number() -> None:
    finish = pb.Finish(reason=pb.FINISH_REASON_STOP, text="END")
    delta = delta_from(pb.GenerateResponse(finish=finish))
    assert delta.finish is not None
    assert delta.finish.matched == "END"
    assert delta.finish.tokens_per_s is None


def test_a_finish_without_a_known_reason_is_a_broken_contract() -> None:
    with pytest.raises(ProtocolError):
        delta_from(pb.GenerateResponse(finish=pb.Finish()))
