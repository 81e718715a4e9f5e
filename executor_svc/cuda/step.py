"""What the compute stream does in one step, from carry-over to the finish mask.

    carry-over ─► forward ─► logits of each row's last token ─► choice (choosing.py)

A decode step is two graphs: the first half belongs to (slot, bucket of rows), the choice to its
recipe as well, so that a new mixture of ways to sample costs the capture of a few kernels. Of a
mixed step the choice is a graph, and so are the segments if the model is fused and the step not
long (segments.py).
"""

from functools import partial
from itertools import product

import torch
from torch import Tensor

from executor_svc.attention import attending
from executor_svc.cuda.attention import StepShape, TritonAttention
from executor_svc.cuda.choosing import Choosing
from executor_svc.cuda.device_slot import DeviceSlot
from executor_svc.cuda.fused import FusedModel, Tokens
from executor_svc.cuda.graphs import Launcher, Work, progress
from executor_svc.cuda.segments import SegmentedModel
from executor_svc.cuda.step_kernels import resolve_carry_over
from executor_svc.kv_cache import KvCache
from executor_svc.model import CausalModel
from executor_svc.recipe import PLAIN, Recipe, Told
from executor_svc.sampler import Path
from executor_svc.slots import Lanes


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
        choosing: Choosing,
        launcher: Launcher,
    ) -> None:
        self._model = model
        self._fused = fused
        self._cache = cache
        self._attention = attention
        self._slots = slots
        self._lanes = lanes
        self._choosing = choosing
        self._launcher = launcher
        self._segments: SegmentedModel | None = None
        if fused:
            tokens_max = len(slots[0].token_ids)
            self._segments = SegmentedModel(fused, cache, launcher, choosing.logits, tokens_max)

    @torch.inference_mode()
    def enqueue(self, shape: StepShape, recipe: Recipe) -> None:
        self._attention.begin(shape)
        if shape.is_decode:
            self._launcher.run(*self._decode_work(shape))
        else:
            self._mixed(shape)
        self._launcher.run(*self._choice_work(shape, recipe))

    @torch.inference_mode()
    def prepare_slot(self, slot: int, buckets: list[int]) -> None:
        """Captures decode steps of these buckets of rows; the slot must be empty (no rows)."""
        for rows in progress(buckets[::-1], f"capturing graphs of slot {'AB'[slot]}"):
            shape = StepShape(slot, rows, rows, 1, rows)
            self._attention.begin(shape)
            self._launcher.prepare(*self._decode_work(shape))
            self._launcher.prepare(*self._choice_work(shape, PLAIN))

    @torch.inference_mode()
    def prepare_others(self, buckets: list[int]) -> None:
        """Captures what mixed steps have, and compiles what the first of their kind would wait for.

        The slots must be empty.
        """
        nothing = StepShape(0, 1, 1, 2, 1)  # a row of one token at least, for which there is none
        self._attention.begin(nothing)
        self._mixed(nothing)
        if self._segments:
            self._segments.prepare(buckets)
        for path, penalises in product(Path, (False, True)):
            self._choosing.enqueue(0, 1, Recipe(path, penalises, Told.TOP))

    def _decode_work(self, shape: StepShape) -> Work:
        return ("decode", shape.slot, shape.rows), partial(self._decode, shape)

    def _choice_work(self, shape: StepShape, recipe: Recipe) -> Work:
        arguments = shape.slot, shape.bucket, recipe
        return ("choice", *arguments), partial(self._choosing.enqueue, *arguments)

    def _decode(self, shape: StepShape) -> None:
        self._carry_over(shape)
        tokens, logits = self._tokens(shape), self._choosing.logits[: shape.rows]
        if self._fused:
            self._fused.forward(tokens, None, self._cache, self._attention, logits)
        else:
            every = torch.arange(shape.rows, device=logits.device)
            self._unfused(tokens, every, logits)

    def _mixed(self, shape: StepShape) -> None:
        self._carry_over(shape)
        tokens = self._tokens(shape)
        ends = self._slots[shape.slot].query_indptr[1 : shape.rows + 1]
        if self._segments and shape.tokens <= self._segments.tokens_max:
            self._segments.forward(tokens, ends, shape.bucket, self._attention)
            return
        logits = self._choosing.logits[: shape.rows]
        if self._fused:
            self._fused.forward(tokens, (ends - 1).long(), self._cache, self._attention, logits)
        else:
            self._unfused(tokens, (ends - 1).long(), logits)

    def _carry_over(self, shape: StepShape) -> None:
        cache = self._cache
        resolve_carry_over(
            self._slots[shape.slot], self._lanes, shape.rows, cache.scrap_slot, cache.block_size
        )

    def _tokens(self, shape: StepShape) -> Tokens:
        slot = self._slots[shape.slot]
        return Tokens(slot.token_ids, slot.positions, slot.kv_slots).first(shape.tokens)

    def _unfused(self, tokens: Tokens, keep: Tensor, logits: Tensor) -> None:
        with attending(self._attention):
            logits.copy_(self._model.forward(tokens.ids, tokens.positions, keep))
