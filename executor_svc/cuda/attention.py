"""The attention backends of the CUDA executor, behind one small interface.

A step is announced by `begin`, before its kernels are enqueued or captured; whatever a backend must
work out on the host for this very step it does in `plan`, on the stream that copies to the device.
Then every layer calls `attend_cached` (the KV is in the cache already) or `attend` (it is not).
"""

from dataclasses import dataclass
from importlib.util import find_spec

import structlog
import torch
from torch import Tensor

from executor_svc.attention import LayerCall, LayerShape
from executor_svc.cuda.device_slot import DeviceSlot
from executor_svc.cuda.paged_kernels import Tables, decode_splits, paged_attention
from executor_svc.errors import ExecutorError
from executor_svc.kv_cache import KvCache
from svc_wire.frames import BatchPlan

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the host must know of a step to enqueue its kernels."""

    slot: int
    rows: int
    """Rows that are computed: the plan's, or the bucket of a decode step."""
    tokens: int
    longest: int
    """Most tokens of one row; 1 in a decode step."""
    bucket: int
    """Rows that are chosen for, so that few graphs serve all steps: no fewer than `rows`."""

    @property
    def is_decode(self) -> bool:
        return self.longest == 1


class TritonAttention:
    """Our own kernels. Needs nothing from the host."""

    def __init__(self, cache: KvCache, slots: list[DeviceSlot]) -> None:
        self._cache = cache
        self._slots = slots
        self._processors = _processors(slots[0].result.device)
        self._step: StepShape | None = None

    def plan(self, plan: BatchPlan, step: StepShape) -> None:
        """The host's part of a step; copies go to the current stream."""

    def begin(self, step: StepShape) -> None:
        """The calls that follow belong to this step."""
        self._step = step

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """For transformers' own layers, see executor_svc.attention.Attention."""
        step = self._current
        keys, values = self._cache.flat(call.layer)
        kv_slots = self._slots[step.slot].kv_slots[: step.tokens].long()
        keys[kv_slots] = key
        values[kv_slots] = value
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        self.attend_cached(query.contiguous(), call, out)
        return out

    def attend_cached(self, query: Tensor, call: LayerCall, out: Tensor) -> None:
        """From query [T, Hq, D], heads contiguous, to out [T, Hq, Dv]."""
        step = self._current
        kv = self._cache.keys[call.layer], self._cache.values[call.layer]
        splits = 1
        if step.is_decode:
            kv_heads, dim = kv[0].shape[2:]
            splits = decode_splits(step.rows, kv_heads, dim, self._processors)
        paged_attention(
            query, kv, self._tables(step), call,
            rows=step.rows, longest=step.longest, splits=splits, out=out,
        )  # fmt: skip

    @property
    def _current(self) -> StepShape:
        assert self._step is not None
        return self._step

    def _tables(self, step: StepShape) -> Tables:
        slot = self._slots[step.slot]
        return Tables(slot.query_indptr, slot.row_stop, slot.block_indptr, slot.block_ids)


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def choose_attention(
    wanted: str, layers: tuple[LayerShape, ...], cache: KvCache, slots: list[DeviceSlot]
) -> TritonAttention:
    """The backend `wanted` ("auto", "flashinfer", "triton"). Logs what was taken and why."""
    reason = _why_not_flashinfer(layers, cache)
    if wanted == "flashinfer" and reason:
        raise ExecutorError(f"--attention flashinfer cannot serve this model: {reason}")
    if wanted == "triton" or reason:
        log.info("attention", backend="triton", reason=reason or "asked for")
        return TritonAttention(cache, slots)
    from executor_svc.cuda.flashinfer_attention import FlashInferAttention

    log.info("attention", backend="flashinfer")
    return FlashInferAttention(cache, slots, layers[0])


def _why_not_flashinfer(layers: tuple[LayerShape, ...], cache: KvCache) -> str:
    """Empty if FlashInfer can serve layers of these shapes."""
    shape, dtype = layers[0], cache.keys[0].dtype
    if find_spec("flashinfer") is None:
        return "flashinfer is not installed"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"it does not compute in {dtype}"
    if len(set(layers)) > 1 or shape.key_dim != shape.value_dim:
        return "layers differ in shape, or keys from values"
    if shape.key_dim not in (64, 128, 256):
        return f"it has no kernels for head dimension {shape.key_dim}"
    return ""
