"""Attention over a paged KV cache, plugged into transformers' own model classes.

A model built with attn_implementation=NAME calls `_attend_for_transformers` in every layer, with
the tokens of all rows packed side by side: [1, heads, T, dim]. It hands the layer's tensors to
whatever `Attention` the runner has made current. House rules of this seam:

* NAME is registered as an attention function and not as a mask, so transformers builds no mask.
* The current attention is found here, not in a keyword: some families drop keywords on the way.
* `sliding_window` is believed when it is passed, also when it is None: in some families the module
  carries a window that does not apply to this layer.
* RoPE is applied and K and V are not repeated when they arrive. Dv may differ from D.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "twostroke"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads and dimensions of one layer's attention, as the layer itself showed them."""

    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def kv_elements(self) -> int:
        """Numbers that one token keeps in the cache of this layer."""
        return self.kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True, eq=False)
class LayerCall:
    """What a layer asks for beside its tensors."""

    layer: int
    scale: float
    """Factor of the scores q . k."""
    window: int | None
    """A query at position p sees keys (p - window : p]; None: all keys [0:p]."""
    softcap: float | None
    """Scores become softcap * tanh(score / softcap)."""
    sinks: Tensor | None
    """[Hq] one more score for each head, which takes its share of the softmax and has no value."""


class Attention(Protocol):
    """Writes the KV of a step's tokens, and attends over the cache. Knows the step beforehand."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Takes [T, Hq, D], [T, Hk, D] and [T, Hk, Dv] (any strides); returns [T, Hq, Dv]."""


_current: Attention | None = None


@contextmanager
def attending(attention: Attention) -> Iterator[None]:
    """Makes `attention` serve every layer that is called inside. One thread at a time."""
    global _current
    assert _current is None, "one step at a time"
    _current = attention
    try:
        yield
    finally:
        _current = None


_UNSET: Any = object()


def _attend_for_transformers(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = _UNSET,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function of transformers: [1, Hq, T, D] in, [1, T, Hq, Dv] out."""
    assert _current is not None, "the model was called outside of `attending`"
    assert attention_mask is None, "transformers built a mask for packed rows"
    if sliding_window is _UNSET:
        sliding_window = getattr(module, "sliding_window", None)
    call = LayerCall(
        layer=int(module.layer_idx),  # type: ignore[arg-type]
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window or None,
        softcap=softcap,
        sinks=getattr(module, "sinks", None) if s_aux is None else s_aux,
    )
    out = _current.attend(
        query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), call
    )
    return out[None], None


AttentionInterface.register(NAME, _attend_for_transformers)
