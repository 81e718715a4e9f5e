"""Log-probabilities are those of log_softmax, whatever a sampler does to the logits afterwards."""

import pytest
import torch

from executor_svc.logprobs import Measured, measure, of_chosen
from executor_svc.recipe import Told
from svc_wire.ids import LOGPROBS_MAX, NO_TOKEN

pytestmark = pytest.mark.model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_those_of_log_softmax(dtype: torch.dtype) -> None:
    logits = (torch.randn(5, 90, generator=torch.Generator().manual_seed(4)) * 5).to(dtype)
    expected = logits.float().log_softmax(-1)
    measured = measure(logits, Told.TOP)
    values = expected.topk(LOGPROBS_MAX).values
    torch.testing.assert_close(measured.top, values, rtol=0, atol=1e-5)
    by_id = expected.gather(1, measured.top_ids.long())
    torch.testing.assert_close(measured.top, by_id, rtol=0, atol=1e-5)
    tokens = torch.tensor([0, 89, 3, 3, 50], dtype=torch.int32)
    chosen = of_chosen(logits, tokens, measured)
    by_token = expected.gather(1, tokens.long()[:, None])[:, 0]
    torch.testing.assert_close(chosen, by_token, rtol=0, atol=1e-5)


def test_without_alternatives_nobody_looks_for_them() -> None:
    measured = measure(torch.zeros(2, 4), Told.CHOSEN)
    assert measured.top.shape == measured.top_ids.shape == (2, 0)


def test_a_small_vocabulary_is_padded() -> None:
    measured = measure(torch.tensor([[0.0, -torch.inf, 0.0]]), Told.TOP)
    assert measured.top_ids[0, 3:].tolist() == [NO_TOKEN] * (LOGPROBS_MAX - 3)
    assert measured.top[0, 2:].tolist() == [-torch.inf] * (LOGPROBS_MAX - 2)
    assert measured.top_ids.dtype is torch.int32


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_rows_in_error_have_numbers_that_a_frame_takes(poison: float) -> None:
    logits = torch.tensor([[poison, 0.0], [-torch.inf, -torch.inf], [0.0, 500.0]])
    measured = measure(logits, Told.TOP)
    tokens = torch.tensor([NO_TOKEN, NO_TOKEN, 1], dtype=torch.int32)
    for values in (measured.top, of_chosen(logits, tokens, measured)):
        assert bool((values <= 0).all())


def test_rounding_makes_nothing_more_than_certain() -> None:
    nothing = torch.empty(1, 0)
    rounded = Measured(torch.tensor([2.9999995]), nothing.to(torch.int32), nothing)
    logits = torch.tensor([[3.0, -50.0]])
    assert of_chosen(logits, torch.tensor([0]), rounded).tolist() == [0.0]
