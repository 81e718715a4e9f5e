"""A decoder of the Llama kind, fused, over the weights of transformers' own modules.

Projections that read the same input become one matrix product; what lies between matrix products
becomes one kernel each. The merged weights are the storage of the original parameters from then on
(as views), so that the unfused model stays usable and nothing is held twice.

A step is `enter`, attention of layer 0, `between`, attention of layer 1, ... and `leave`; what
crosses the border of an attention lies in buffers that the caller provides.

Which families may be served so is decided by their structure here, and by trial in fusing.py.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from executor_svc.attention import LayerCall
from executor_svc.cuda.kernels import add_norm, embed_norm, rope_write, swiglu
from executor_svc.cuda.products import Weight
from executor_svc.kv_cache import KvCache
from executor_svc.model import CausalModel


class CachedAttention(Protocol):
    """Attention over a cache that holds the step's own keys already."""

    def attend_cached(self, query: Tensor, call: LayerCall, out: Tensor) -> None:
        """From query to out, both [T, Hq, D]."""


class Tokens(NamedTuple):
    """The packed tokens of a step, each [T]."""

    ids: Tensor
    positions: Tensor
    kv_slots: Tensor

    def first(self, tokens: int) -> "Tokens":
        return Tokens(*(each[:tokens] for each in self))


class Activations(NamedTuple):
    """What crosses the border between attention and the rest, for T tokens."""

    query: Tensor  # [T, Hq, D]
    attended: Tensor  # [T, Hq, D]
    residual: Tensor  # [T, N]

    def first(self, tokens: int) -> "Activations":
        return Activations(*(each[:tokens] for each in self))


class NotFusable(Exception):
    """The family is served unfused; the text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    qkv: Weight  # [(Hq + 2 Hk) * D, N]
    qkv_bias: Tensor | None
    output: Weight  # [N, Hq * D]
    gate_up: Weight  # [2 I, N]
    down: Weight  # [N, I]
    input_norm: Tensor  # [N]
    post_norm: Tensor  # [N]
    head_norms: tuple[Tensor, Tensor, float] | None


class FusedModel:
    """Logits of packed tokens through the fused layers."""

    def __init__(self, model: CausalModel, calls: list[LayerCall], positions: int) -> None:
        """Merges the weights of `model` in place. Raises NotFusable, before anything is changed."""
        inner, layer = model.module.model, model.layers[0]
        if len(set(model.layers)) > 1 or layer.key_dim != layer.value_dim:
            raise NotFusable("layers differ in shape, or keys from values")
        self._rope = _rope_tables(inner, model, positions)
        self._layers = [_merge(each) for each in _checked_layers(inner)]
        self.calls = calls
        """What each layer asks its attention for."""
        self._heads = layer.query_heads, layer.key_dim
        self._embedding: Tensor = inner.embed_tokens.weight
        self._final_norm: Tensor = inner.norm.weight
        self._head: Tensor = model.module.lm_head.weight
        self._eps = float(inner.norm.variance_epsilon)

    def activations(self, tokens: int) -> Activations:
        """Room for them, with anything in it."""
        heads = self._embedding.new_empty(2, tokens, *self._heads)
        residual = self._embedding.new_empty(tokens, self._embedding.shape[1])
        return Activations(heads[0], heads[1], residual)

    def forward(
        self,
        tokens: Tokens,
        keep: Tensor | None,
        cache: KvCache,
        attention: CachedAttention,
        logits: Tensor,
    ) -> None:
        """Fills logits [S, vocab] of the tokens at `keep` [S] (None: all)."""
        crossing = self.activations(len(tokens.ids))
        self.enter(tokens, cache, crossing)
        for call in self.calls[:-1]:
            attention.attend_cached(crossing.query, call, crossing.attended)
            self.between(call.layer, tokens, cache, crossing)
        attention.attend_cached(crossing.query, self.calls[-1], crossing.attended)
        self.leave(crossing, keep, logits)

    def enter(self, tokens: Tokens, cache: KvCache, crossing: Activations) -> None:
        """From the token ids to the query of layer 0."""
        norm = self._layers[0].input_norm
        x = embed_norm(tokens.ids, self._embedding, norm, self._eps, crossing.residual)
        self._project(0, x, tokens, cache, crossing.query)

    def between(self, index: int, tokens: Tokens, cache: KvCache, crossing: Activations) -> None:
        """From what layer `index` attended to, to the query of the next layer."""
        norm = self._layers[index + 1].input_norm
        x = self._feed_forward(index, crossing.attended.flatten(1), crossing.residual, norm)
        self._project(index + 1, x, tokens, cache, crossing.query)

    def leave(self, crossing: Activations, keep: Tensor | None, logits: Tensor) -> None:
        """From what the last layer attended to, to the logits of the tokens at `keep`."""
        x, residual = crossing.attended.flatten(1), crossing.residual
        if keep is not None:
            # Of the last layer the others leave their KV, and nothing that anybody reads.
            x, residual = x[keep], residual[keep]
        x = self._feed_forward(len(self._layers) - 1, x, residual, self._final_norm)
        torch.mm(x, self._head.T, out=logits)

    def _project(
        self, index: int, x: Tensor, tokens: Tokens, cache: KvCache, query: Tensor
    ) -> None:
        layer = self._layers[index]
        rope_write(
            layer.qkv.product(x), layer.qkv_bias, tokens.positions, tokens.kv_slots, self._rope,
            (cache.keys[index], cache.values[index]), layer.head_norms, query,
        )  # fmt: skip

    def _feed_forward(self, index: int, x: Tensor, residual: Tensor, next_norm: Tensor) -> Tensor:
        """What follows the attention of a layer; `residual` is changed."""
        layer, eps = self._layers[index], self._eps
        x = add_norm(layer.output.product(x), residual, layer.post_norm, eps)
        x = swiglu(layer.gate_up.product(x), x.dtype)
        return add_norm(layer.down.product(x), residual, next_norm, eps)


def _checked_layers(inner: Any) -> list[Any]:
    """The decoder layers, if all are of the one structure that `_merge` understands."""
    for layer in inner.layers:
        _require_children(
            layer, {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
        )
        _require_children(
            layer.self_attn, {"q_proj", "k_proj", "v_proj", "o_proj"}, {"q_norm", "k_norm"}
        )
        _require_children(layer.mlp, {"gate_proj", "up_proj", "down_proj", "act_fn"})
        linears = [m for m in layer.modules() if isinstance(m, nn.Linear)]
        if len(linears) != 7 or any(type(m) is not nn.Linear for m in linears):
            raise NotFusable("projections are not plain linear layers")
        whole = (
            layer.self_attn.o_proj,
            layer.mlp.gate_proj,
            layer.mlp.up_proj,
            layer.mlp.down_proj,
        )
        if any(m.bias is not None for m in whole):
            raise NotFusable("output or feed-forward projections have biases")
        if not hasattr(layer.input_layernorm, "variance_epsilon"):
            raise NotFusable("norms are not RMS norms")
    if inner.config.hidden_act != "silu":
        raise NotFusable(f"its activation is {inner.config.hidden_act}")
    return list(inner.layers)


def _require_children(module: nn.Module, wanted: set[str], allowed: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    found = {name for name, _ in module.named_children()}
    if not wanted <= found <= wanted | allowed:
        raise NotFusable(f"{type(module).__name__} consists of {', '.join(sorted(found))}")


def _merge(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    norms = None
    if hasattr(attention, "q_norm"):
        norms = (
            attention.q_norm.weight,
            attention.k_norm.weight,
            attention.q_norm.variance_epsilon,
        )
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    return _Layer(
        qkv=Weight(_join(qkv, "weight")),
        qkv_bias=None if attention.q_proj.bias is None else _join(qkv, "bias"),
        output=Weight(attention.o_proj.weight.detach()),
        gate_up=Weight(_join([mlp.gate_proj, mlp.up_proj], "weight")),
        down=Weight(mlp.down_proj.weight.detach()),
        input_norm=layer.input_layernorm.weight,
        post_norm=layer.post_attention_layernorm.weight,
        head_norms=norms,
    )


def _join(modules: list[nn.Module], name: str) -> Tensor:
    """Concatenates a parameter of several modules and makes each theirs a view of the result."""
    parameters: list[nn.Parameter] = [getattr(module, name) for module in modules]
    joined = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(
        parameters, joined.split([len(parameter) for parameter in parameters]), strict=True
    ):
        parameter.data = part
    return joined


def _rope_tables(inner: Any, model: CausalModel, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, D/2] as the model's own module makes them."""
    rotary = getattr(inner, "rotary_emb", None)
    if rotary is None or getattr(rotary, "rope_type", "default") not in (
        "default", "linear", "llama3", "yarn",
    ):  # fmt: skip
        raise NotFusable("its rotary positions depend on the length of the sequence")
    where = torch.arange(positions, device=model.device)[None]
    cosine, sine = rotary(torch.empty(0, dtype=model.dtype, device=model.device), where)
    half = model.layers[0].key_dim // 2
    if cosine.shape[-1] != 2 * half or not torch.equal(cosine[..., :half], cosine[..., half:]):
        raise NotFusable("its rotary positions do not cover the head in two halves")
    return cosine[0, :, :half].contiguous(), sine[0, :, :half].contiguous()
