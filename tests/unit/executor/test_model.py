"""What a dry run tells of a model: each objection on its own."""

from types import SimpleNamespace

import pytest
import torch

from executor_svc.attention import LayerCall
from executor_svc.model import _objection, _Probe

pytestmark = pytest.mark.model


def _seen(*calls: tuple[int, int | None]) -> _Probe:
    """A probe that was called by (layer, window)."""
    probe = _Probe()
    query, key = torch.zeros(2, 4, 8), torch.zeros(2, 2, 8)
    for layer, window in calls:
        probe.attend(query, key, key, LayerCall(layer, 1.0, window, None, None))
    return probe


TWO = SimpleNamespace(num_hidden_layers=2, layer_types=None)
SLIDING = SimpleNamespace(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"])


def test_nothing_is_wrong_with_every_layer_once() -> None:
    assert _objection(_seen((0, None), (1, None)), TWO) == ""
    assert _objection(_seen((0, None), (1, 8)), SLIDING) == ""


def test_a_layer_that_never_calls() -> None:
    assert "only the layers [0] of 2" in _objection(_seen((0, None)), TWO)
    assert "only the layers [] of 2" in _objection(_seen(), TWO)


def test_a_layer_that_calls_twice() -> None:
    assert "more than once" in _objection(_seen((0, None), (1, None), (1, None)), TWO)


def test_a_window_that_is_not_passed() -> None:
    assert "layer 1 has a sliding window" in _objection(_seen((0, None), (1, None)), SLIDING)
