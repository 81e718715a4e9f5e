"""FlashInfer's kernels for mixed steps, which hold prompts or pieces of prompts, where they win.

FlashInfer cuts a step into work items on the host; the list goes to the device with the plan, on
the stream that copies. Its wrappers would also copy the tables, which are on the device already, so
this module calls the two functions below the wrappers. Decode steps stay with our own kernels: they
measured faster at every batch size that was tried, and they need nothing from the host. So do mixed
steps that mostly decode, see attention_costs.py.
"""

from typing import Any

import structlog
import torch
from flashinfer.jit.attention.modules import gen_batch_prefill_module
from flashinfer.prefill import get_batch_prefill_module
from torch import Tensor

from executor_svc.attention import LayerCall, LayerShape
from executor_svc.cuda.attention import StepShape, TritonAttention
from executor_svc.cuda.attention_costs import is_ours_quicker
from executor_svc.cuda.device_slot import DeviceSlot
from executor_svc.cuda.kernels import early_launch
from executor_svc.kv_cache import KvCache
from svc_wire.frames import BatchPlan

log = structlog.get_logger()

_FLOAT_BYTES = 256 << 20
"""Partial results of split rows; one buffer for all, since steps do not overlap on the device."""
_INT_BYTES = 8 << 20
_CAUSAL = 1
_LAYOUT_NHD = 0


class FlashInferAttention(TritonAttention):
    """Our own kernels for steps that decode, FlashInfer's for those that are mostly prompts."""

    def __init__(self, cache: KvCache, slots: list[DeviceSlot], shape: LayerShape) -> None:
        super().__init__(cache, slots)
        self._shape = shape
        keys = cache.keys[0]
        self._kind, self._module = _load_module(keys.device, keys.dtype, shape)
        self._floats = torch.empty(_FLOAT_BYTES, dtype=torch.uint8, device=keys.device)
        self._ints = [torch.empty(_INT_BYTES, dtype=torch.uint8, device=keys.device) for _ in slots]
        self._pinned = [torch.empty(_INT_BYTES, dtype=torch.uint8, pin_memory=True) for _ in slots]
        self._work: list[Any] = [None for _ in slots]
        """FlashInfer's description of the work list of each slot's step; None: the step is ours."""
        self._early = early_launch(keys.device)

    def plan(self, plan: BatchPlan, step: StepShape) -> None:
        self._work[step.slot] = None
        if step.is_decode:
            return
        heads = self._shape.query_heads, self._shape.kv_heads
        # The kernels for other devices than Hopper have not been compared with ours.
        if self._kind != "fa3" or not is_ours_quicker(plan, *heads):
            self.plan_work(plan, step)

    def plan_work(self, plan: BatchPlan, step: StepShape) -> None:
        """Makes it a step of FlashInfer's."""
        shape = self._shape
        # Copies: a plan's arrays are read-only, and torch warns of that.
        query_indptr, block_indptr, lengths = (
            torch.from_numpy(array.copy())
            for array in (plan.query_indptr, plan.block_indptr, plan.row_stop)
        )
        split = (-1, False, 0) if self._kind == "fa2" else ()
        self._work[step.slot] = self._module.plan(
            self._floats, self._ints[step.slot], self._pinned[step.slot],
            query_indptr, block_indptr, lengths, step.tokens, step.rows,
            shape.query_heads, shape.kv_heads, self._cache.block_size, False,
            shape.key_dim, shape.value_dim, True, -1, *split,
        )  # fmt: skip

    def attend_cached(self, query: Tensor, call: LayerCall, out: Tensor) -> None:
        step = self._current
        plain = call.window is None and call.softcap is None and call.sinks is None
        if self._work[step.slot] is None or not plain:
            super().attend_cached(query, call, out)
            return
        slot = self._slots[step.slot]
        self._module.paged_run(
            self._floats, self._ints[step.slot], self._work[step.slot], query,
            self._cache.keys[call.layer], self._cache.values[call.layer],
            slot.query_indptr[: step.rows + 1], slot.block_indptr[: step.rows + 1],
            slot.block_ids, slot.last_page[: step.rows], out, None,
            _CAUSAL, _LAYOUT_NHD, -1, self._early,
            None, None, None, None, None, None,
            0.0, call.scale, None, None, None, 1.0, 1e4, 0, _FLOAT_BYTES,
        )  # fmt: skip


def _load_module(device: torch.device, dtype: torch.dtype, shape: LayerShape) -> tuple[str, Any]:
    """(kind, functions): the kernels for Hopper where they fit, else those for any device."""
    arguments = (
        dtype, dtype, dtype, torch.int32, shape.key_dim, shape.value_dim, 0, False, False, False,
    )  # fmt: skip
    if torch.cuda.get_device_capability(device) == (9, 0):
        try:
            return "fa3", _build("fa3", arguments)
        except RuntimeError as error:
            log.warning("no Hopper kernels of FlashInfer", error=str(error).splitlines()[0])
    return "fa2", _build("fa2", arguments)


def _build(kind: str, arguments: tuple[Any, ...]) -> Any:
    if not gen_batch_prefill_module(kind, *arguments).is_compiled:
        log.warning("FlashInfer builds kernels for this model, once: this takes minutes", kind=kind)
    return get_batch_prefill_module(kind, *arguments)
