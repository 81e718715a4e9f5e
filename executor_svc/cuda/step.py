"""What the compute stream does in one step, from carry-over to the finish mask.

    carry-over ─► forward ─► logits of each row's last token ─► sample ─► finish mask, lanes, result

Where a row has penalties, input tokens join the histories after the carry-over, and scores change
before sampling. Where one wants log-probabilities, they come from the logits before that.

A decode step is this sequence for a bucket of rows, captured in a graph; a mixed step is the same
sequence launched one by one. Everything that differs between two steps is read on the device.
"""

import torch
from torch import Tensor

from executor_svc.attention import attending
from executor_svc.cuda.attention import StepShape, TritonAttention
from executor_svc.cuda.device_slot import DeviceSlot
from executor_svc.cuda.fused import FusedModel
from executor_svc.cuda.penalty_kernels import join_histories, penalise
from executor_svc.cuda.sampling_kernels import draw
from executor_svc.cuda.step_kernels import resolve_carry_over, sample_greedy, settle
from executor_svc.kv_cache import KvCache
from executor_svc.logprobs import measure, of_chosen
from executor_svc.model import CausalModel
from executor_svc.penalties import Histories
from executor_svc.recipe import Recipe
from executor_svc.sampler import Path, SamplingRows, sample
from executor_svc.slots import Lanes
from svc_wire.ids import RowFlag


class Step:
    """Enqueues steps on the current stream."""

    def __init__(
        self,
        model: CausalModel,
        fused: FusedModel | None,
        cache: KvCache,
        attention: TritonAttention,
        slots: list[DeviceSlot],
        lanes: Lanes,
        histories: Histories,
    ) -> None:
        self._model = model
        self._fused = fused
        self._cache = cache
        self._attention = attention
        self._slots = slots
        self._lanes = lanes
        self._histories = histories

    @torch.inference_mode()
    def enqueue(self, shape: StepShape, recipe: Recipe) -> None:
        slot = self._slots[shape.slot]
        self._attention.begin(shape)
        resolve_carry_over(
            slot, self._lanes, shape.rows, self._cache.scrap_slot, self._cache.block_size
        )
        if recipe.penalises:
            join_histories(slot, self._histories, shape.rows)
        logits = self._logits(slot, shape)
        measured = measure(logits, recipe.told) if recipe.told else None
        scores = penalise(logits, slot, self._histories) if recipe.penalises else logits
        if recipe.path is Path.GREEDY:
            sample_greedy(scores, slot, self._lanes)
        else:
            sampled = sample(scores, _sampling_rows(slot, shape.rows), recipe.path, draw)
            settle(sampled.token, slot, self._lanes)
        if measured is not None:
            token = slot.result[0, : shape.rows]
            slot.tell(of_chosen(logits, token, measured), measured)

    def _logits(self, slot: DeviceSlot, shape: StepShape) -> Tensor:
        """[rows, vocab], of the last token of every row; also of rows that do not sample."""
        token_ids, positions = slot.token_ids[: shape.tokens], slot.positions[: shape.tokens]
        last = None if shape.is_decode else slot.query_indptr[1 : shape.rows + 1].long() - 1
        if self._fused is not None:
            kv_slots = slot.kv_slots[: shape.tokens]
            return self._fused.forward(
                token_ids, positions, kv_slots, last, self._cache, self._attention
            )
        if last is None:
            last = torch.arange(shape.rows, device=token_ids.device)
        with attending(self._attention):
            return self._model.forward(token_ids, positions, last)


def _sampling_rows(slot: DeviceSlot, rows: int) -> SamplingRows:
    return SamplingRows(
        temperature=slot.temperature[:rows],
        top_k=slot.top_k[:rows],
        top_p=slot.top_p[:rows],
        min_p=slot.min_p[:rows],
        seed=slot.seed[:rows],
        position=slot.row_stop[:rows],
        stop_ids=slot.stop_ids[:rows],
        ban_stop=(slot.row_flags[:rows] & int(RowFlag.BAN_STOP)) != 0,
    )
