"""Packed layers compute what the plain ones compute."""

import pytest
import torch
from torch import nn

from executor_svc.packed_linear import PackedLinear, pack_linears, padded_size

pytestmark = pytest.mark.model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 8, 33])
def test_equals_the_plain_layer(dtype: torch.dtype, bias: bool, tokens: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 80, bias=bias, dtype=dtype)
    inputs = torch.randn(1, tokens, 48, dtype=dtype)
    with torch.inference_mode():
        packed = PackedLinear(linear)
        expected = linear(inputs)
        found = packed(inputs)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert (packed.in_features, packed.out_features) == (48, 80)
    assert torch.equal(packed.weight, linear.weight)


def test_tokens_are_padded_to_a_few_sizes() -> None:
    sizes = [padded_size(tokens) for tokens in range(1025)]
    assert all(tokens <= size for tokens, size in enumerate(sizes))
    assert all(size <= 1.5 * tokens for tokens, size in enumerate(sizes))
    expected = [*range(9), 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert sorted(set(sizes)) == expected


class _Special(nn.Linear):
    pass


def test_only_plain_linear_layers_of_known_formats_are_replaced() -> None:
    module = nn.ModuleDict(
        {
            "a": nn.Linear(4, 4),
            "deep": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
            "special": _Special(4, 4),
            "precise": nn.Linear(4, 4, dtype=torch.float64),
        }
    )
    assert pack_linears(module) == 2
    kinds = [type(m).__name__ for m in module.modules()]
    assert kinds.count("PackedLinear") == 2
    assert {type(module["special"]), type(module["precise"])} == {_Special, nn.Linear}
