"""What is refused at the door, and with which words."""

import math

import numpy as np
import pytest

from scheduler_svc.core import Request
from scheduler_svc.core.fit import misfit
from svc_wire.frontend_link import Sampling
from svc_wire.ids import RejectReason
from tests.support.core import CAPACITY, request


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    "fitting",
    [
        request(1, 1),
        request(1, 39),
        request(39, 1),
        request(3, 4, min_tokens=4),
        request(3, 4, stop_ids=tuple(range(8))),
        request(3, 4, output=ids(0, 89, 5)),
        request(3, 4, sampling=Sampling(100.0, 2**31 - 2, 1e-9, 1.0, -(2**63))),
        request(3, 4, sampling=Sampling(temperature=-0.0, seed=2**63 - 1)),
        request(3, 4, sampling=Sampling(repetition_penalty=2.0, presence_penalty=-2.0)),
        request(3, 4, sampling=Sampling(repetition_penalty=0.01, frequency_penalty=2.0)),
        request(3, 4, logprobs=0),
        request(3, 4, logprobs=20),
    ],
)
def test_what_just_fits_is_accepted(fitting: Request) -> None:
    assert misfit(fitting, CAPACITY) is None


@pytest.mark.parametrize(
    ("unfit", "words"),
    [
        (request(0, 1), "at least one token"),
        (request(1, 0), "at least one token"),
        (request(1, 2, min_tokens=-1), "min_tokens must be 0 to 2"),
        (request(1, 2, min_tokens=3), "min_tokens must be 0 to 2"),
        (request(1, 2, stop_ids=tuple(range(9))), "more than 8 stop ids"),
        (request(1, 2, stop_ids=(90,)), r"\[0:90\)"),
        (request(1, 2, stop_ids=(-1,)), r"\[0:90\)"),
        (Request(prompt=ids(90), max_tokens=1), r"\[0:90\)"),
        (Request(prompt=ids(-1), max_tokens=1), r"\[0:90\)"),
        (request(1, 2, output=ids(90)), r"\[0:90\)"),
        (request(1, 2, output=ids(1, 2)), "already complete"),
        (request(1, 2, logprobs=-1), "logprobs must be 0 to 20"),
        (request(1, 2, logprobs=21), "logprobs must be 0 to 20"),
    ],
)
def test_what_is_invalid_is_named(unfit: Request, words: str) -> None:
    found = misfit(unfit, CAPACITY)
    assert found
    assert found[0] is RejectReason.INVALID
    assert pytest.raises(ValueError, match=words).matches(ValueError(found[1]))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=-0.1),
        Sampling(temperature=100.1),
        Sampling(temperature=math.nan),
        Sampling(temperature=math.inf),
        Sampling(top_k=-1),
        Sampling(top_k=2**31 - 1),
        Sampling(top_p=0.0),
        Sampling(top_p=1.1),
        Sampling(top_p=math.nan),
        Sampling(min_p=-0.1),
        Sampling(min_p=math.nan),
        Sampling(seed=2**63),
        Sampling(repetition_penalty=0.0),
        Sampling(repetition_penalty=2.1),
        Sampling(repetition_penalty=math.nan),
        Sampling(presence_penalty=-2.1),
        Sampling(presence_penalty=math.nan),
        Sampling(frequency_penalty=2.1),
        Sampling(frequency_penalty=math.inf),
    ],
)
def test_sampling_that_a_frame_would_not_hold_is_refused(sampling: Sampling) -> None:
    found = misfit(request(sampling=sampling), CAPACITY)
    assert found
    assert found[0] is RejectReason.INVALID


def test_what_is_too_long_is_told_the_numbers() -> None:
    found = misfit(request(20, 21), CAPACITY)
    assert found == (
        RejectReason.TOO_LONG,
        "prompt (20) and max_tokens (21) make 41 tokens, at most 40 fit",
    )
