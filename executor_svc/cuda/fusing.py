"""Decides whether a model is served fused: by its structure, then by trial.

The fused model must give the logits of the unfused one over a few tokens. A family with a twist
that the structure does not show (a multiplier, another norm, another order) fails the trial and is
served unfused.
"""

import structlog
import torch
from torch import Tensor

from executor_svc.attention import LayerCall, attending
from executor_svc.cuda.fused import FusedModel, NotFusable, Tokens
from executor_svc.cuda.paged_kernels import Tables, paged_attention
from executor_svc.kv_cache import KvCache
from executor_svc.model import CausalModel

log = structlog.get_logger()

_TRIAL_TOKENS = 24
_TRIAL_BLOCK = 16
_ERROR_MAX = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 0.15}
"""Most relative error of fused logits. Rounding stays well below, a twist of the family above."""


@torch.inference_mode()
def fuse(model: CausalModel, positions: int) -> FusedModel | None:
    """The fused form of `model` for so many positions, or None if its family cannot be fused."""
    try:
        expected, calls = _trial_unfused(model)
        fused = FusedModel(model, calls, positions)
        error = _relative_error(_trial_fused(model, fused), expected)
        if not error <= _ERROR_MAX[model.dtype]:
            raise NotFusable(f"fused logits differ by {error:.2g}")
    except NotFusable as reason:
        log.info(
            "model is served unfused", family=model.module.config.model_type, reason=str(reason)
        )
        return None
    log.info("model is fused", family=model.module.config.model_type, relative_error=f"{error:.1e}")
    return fused


class _TrialAttention:
    """One row of a few tokens over a cache of two blocks; notes what every layer asks for."""

    def __init__(self, model: CausalModel) -> None:
        device = model.device
        self.cache = KvCache.allocate(model.layers, 2, _TRIAL_BLOCK, model.dtype, device)
        self.calls: dict[int, LayerCall] = {}

        def numbers(*values: int) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        self._tables = Tables(
            numbers(0, _TRIAL_TOKENS), numbers(_TRIAL_TOKENS), numbers(0, 2), numbers(1, 0)
        )
        where = torch.arange(_TRIAL_TOKENS, dtype=torch.int32, device=device)
        self.positions = where
        self.kv_slots = (where + _TRIAL_BLOCK) % (2 * _TRIAL_BLOCK)
        self.token_ids = (where * 7919 + 11) % model.vocab_size

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        keys, values = self.cache.flat(call.layer)
        keys[self.kv_slots.long()] = key
        values[self.kv_slots.long()] = value
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        self.attend_cached(query.contiguous(), call, out)
        return out

    def attend_cached(self, query: Tensor, call: LayerCall, out: Tensor) -> None:
        self.calls[call.layer] = call
        kv = self.cache.keys[call.layer], self.cache.values[call.layer]
        paged_attention(
            query, kv, self._tables, call, rows=1, longest=_TRIAL_TOKENS, splits=1, out=out
        )


def _trial_unfused(model: CausalModel) -> tuple[Tensor, list[LayerCall]]:
    if not all(hasattr(model.module, name) for name in ("model", "lm_head")):
        raise NotFusable("it has no model and lm_head")
    if not hasattr(model.module.model, "layers") or not hasattr(model.module.model, "embed_tokens"):
        raise NotFusable("it is not a plain stack of decoder layers")
    trial = _TrialAttention(model)
    keep = torch.arange(_TRIAL_TOKENS, device=model.device)
    with attending(trial):
        logits = model.forward(trial.token_ids, trial.positions, keep)
    return logits, [trial.calls[layer] for layer in range(len(model.layers))]


def _trial_fused(model: CausalModel, fused: FusedModel) -> Tensor:
    trial = _TrialAttention(model)
    tokens = Tokens(trial.token_ids, trial.positions, trial.kv_slots)
    logits = torch.empty(_TRIAL_TOKENS, model.vocab_size, dtype=model.dtype, device=model.device)
    fused.forward(tokens, None, trial.cache, trial, logits)
    return logits


def _relative_error(found: Tensor, expected: Tensor) -> float:
    difference = (found.float() - expected.float()).norm()
    return float(difference / expected.float().norm())
