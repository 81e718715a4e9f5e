"""The Runner on a CUDA device: runner.py says what it promises, pipeline.py how it overlaps."""

import os
import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import structlog
import torch

from executor_svc.cuda.attention import StepShape, choose_attention
from executor_svc.cuda.block_swap import BlockSwap
from executor_svc.cuda.choosing import Choosing
from executor_svc.cuda.device_slot import RESULT_LINES, DeviceSlot, PlanSource, read_logprobs
from executor_svc.cuda.fusing import fuse
from executor_svc.cuda.graphs import Direct, Graphs, row_buckets
from executor_svc.cuda.pipeline import Flight, Pipeline
from executor_svc.cuda.step import Step
from executor_svc.kv_cache import KvCache
from executor_svc.model import CausalModel
from executor_svc.penalties import Histories
from executor_svc.recipe import Told, choose_recipe
from executor_svc.runner import RunnerError
from executor_svc.slots import Lanes
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.frames import BatchPlan, StepResult

log = structlog.get_logger()

_SPIN_S = 200e-6
_NAP_S = 20e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions:
    """How a model is run; the defaults are the fastest exact way."""

    attention: str = "auto"
    fused: bool = True
    graphs: bool = True


class CudaRunner:
    """A Runner (see executor_svc.runner) that computes on a CUDA device."""

    def __init__(
        self,
        model: CausalModel,
        capacity: Capacity,
        served_name: str,
        options: CudaOptions = CudaOptions(),
    ) -> None:
        self.capacity = capacity
        self.model = ModelInfo(
            name=served_name,
            path=model.path,
            eos_ids=model.eos_ids,
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
        )
        device = model.device
        torch.cuda.synchronize(device)  # the weights were made on another stream
        self._pipeline = Pipeline(device, RESULT_LINES[Told.TOP], capacity.rows_max)
        with torch.cuda.stream(self._pipeline.compute):
            fused = fuse(model, capacity.model_len_max) if options.fused else None
            cache = KvCache.allocate(
                model.layers, capacity.num_blocks, capacity.block_size, model.dtype, device
            )
            self._slots = [DeviceSlot(capacity, device) for _ in range(2)]
            self._lanes = Lanes(capacity.lanes, device)
            histories = Histories(capacity.lanes, capacity.vocab_size, device)
            logits = torch.zeros(
                capacity.rows_max, capacity.vocab_size, dtype=model.dtype, device=device
            )
            choosing = Choosing(logits, self._slots, self._lanes, histories)
            self._swap: BlockSwap | None = None
            if capacity.host_blocks:
                self._swap = BlockSwap(cache, capacity.host_blocks, self._pipeline.compute)
        self._attention = choose_attention(options.attention, model.layers, cache, self._slots)
        self._graphs = Graphs(self._pipeline.compute)
        self._buckets = row_buckets(capacity.rows_max)
        self._step = Step(
            model, fused, cache, self._attention, self._slots, self._lanes, choosing,
            self._graphs if options.graphs else Direct(),
        )  # fmt: skip
        self._source = PlanSource(capacity)
        self._flights: deque[Flight] = deque()
        # What was made on one stream is used on others from here on.
        torch.cuda.synchronize(device)

    def capture(self) -> None:
        """Captures the graphs of all buckets, so that no request waits for one."""
        begin = time.monotonic()
        reserved = [_bytes_in_use()]
        with torch.cuda.stream(self._pipeline.compute):
            for slot in range(len(self._slots)):
                self._step.prepare_slot(slot, self._buckets)
                reserved.append(_bytes_in_use())
            self._step.prepare_others(self._buckets)
            reserved.append(_bytes_in_use())
        slot_a, slot_b, others = ((b - a) >> 20 for a, b in pairwise(reserved))
        log.info(
            "graphs captured",
            count=len(self._graphs.keys),
            seconds=round(time.monotonic() - begin, 1),
            first_slot_mib=slot_a,
            second_slot_mib=slot_b,
            mixed_steps_mib=others,
        )

    def begin(self, epoch: int) -> None:
        self._pipeline.drain()
        self._flights.clear()
        with torch.cuda.stream(self._pipeline.compute):
            self._lanes.forget()

    def submit(self, plan: BatchPlan, received_ns: int) -> None:
        slot = plan.step % 2
        shape, recipe = self._shape(plan, slot), choose_recipe(plan)
        target = self._slots[slot]

        def load() -> None:
            target.plan_bytes[: len(source)].copy_(source, non_blocking=True)
            self._attention.plan(plan, shape)

        def prepare() -> None:
            if self._swap and len(plan.copies_out) + len(plan.copies_in):
                self._swap.enqueue(plan, target)

        def run() -> None:
            self._step.enqueue(shape, recipe)

        try:
            flight = self._pipeline.claim(slot)
            source = self._source.host_bytes(plan.raw, slot)
            flight.epoch, flight.step, flight.rows = plan.epoch, plan.step, plan.rows
            flight.received_ns = received_ns
            self._pipeline.enqueue(flight, slot, load, prepare, run, target.told[recipe.told])
        except RuntimeError as error:  # torch raises CUDA's and its own errors as this
            raise RunnerError(f"step {plan.step} cannot be enqueued: {error}") from error
        self._flights.append(flight)

    def poll(self) -> StepResult | None:
        try:
            if not self._flights or not self._flights[0].d2h_end.query():
                return None
            return self._collect(self._flights.popleft())
        except RuntimeError as error:
            raise RunnerError(f"a step failed on the device: {error}") from error

    def wait(self, timeout_s: float) -> StepResult | None:
        begin = time.monotonic()
        while (result := self.poll()) is None:
            waited = time.monotonic() - begin
            if waited >= timeout_s:
                return None
            if waited < _SPIN_S:
                os.sched_yield()
            else:
                time.sleep(_NAP_S)
        return result

    def close(self) -> None:
        self._pipeline.drain()
        if self._swap:
            self._swap.close()
        self._source.release()

    def _shape(self, plan: BatchPlan, slot: int) -> StepShape:
        bucket = next(size for size in self._buckets if size >= plan.rows)
        if plan.is_decode:
            return StepShape(slot, bucket, bucket, 1, bucket)
        lengths = plan.row_stop - plan.row_start
        longest = max(2, int(lengths.max()))
        return StepShape(slot, plan.rows, plan.tokens, longest, bucket)

    def _collect(self, flight: Flight) -> StepResult:
        lines = flight.host_result.numpy()[: flight.lines, : flight.rows].copy()
        token, status = lines[:2]
        return StepResult(
            flight.epoch,
            flight.step,
            status.astype("uint8"),
            token,
            self._pipeline.timing(flight),
            read_logprobs(lines),
        )


def _bytes_in_use() -> int:
    """Device memory that is in use or belongs to graphs; what the allocator keeps is let go."""
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()
