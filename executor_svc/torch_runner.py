"""The runner for the CPU: transformers' model, paged attention by gathering, a thread as the
device.

    submit ──► queue ──► [ device thread: slot A │ slot B │ slot A ... ] ──► queue ──► poll, wait

A step is the same sequence as on any device: the plan is copied into the slot whose turn it is,
lanes are carried over, the model runs, tokens are sampled, lanes are settled, the result is copied
out. The thread takes the place of the streams: `submit` returns at once, steps run in order.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from executor_svc.attention import attending
from executor_svc.choosing import Chooser
from executor_svc.gather_attention import GatherAttention
from executor_svc.host_blocks import HostBlocks
from executor_svc.kv_cache import KvCache
from executor_svc.model import CausalModel
from executor_svc.runner import RunnerError
from executor_svc.slots import Lanes, Slot
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.frames import BatchPlan, StepLogprobs, StepResult, StepTiming
from svc_wire.ids import RowFlag

_NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class _Job:
    plan: BatchPlan
    received_ns: int
    submitted_ns: int


class TorchRunner:
    """A Runner (see runner.py) that computes on the CPU."""

    def __init__(self, model: CausalModel, capacity: Capacity, served_name: str) -> None:
        self.capacity = capacity
        self.model = ModelInfo(
            name=served_name,
            path=model.path,
            eos_ids=model.eos_ids,
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
        )
        self._step = _Step(model, capacity)
        self._jobs: queue.SimpleQueue[_Job | Callable[[], None] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[StepResult | Exception] = queue.SimpleQueue()
        self._epoch = _NO_EPOCH
        self._thread = threading.Thread(target=self._device, name="device", daemon=True)
        self._thread.start()

    def begin(self, epoch: int) -> None:
        self._epoch = _NO_EPOCH  # steps of older epochs that have not begun are dropped
        idle = threading.Event()
        self._jobs.put(self._step.forget)
        self._jobs.put(idle.set)
        idle.wait()
        while not self._done.empty():
            self._done.get_nowait()
        self._epoch = epoch  # only now: an older step that failed meanwhile has reset it

    def submit(self, plan: BatchPlan, received_ns: int) -> None:
        self._jobs.put(_Job(plan, received_ns, time.monotonic_ns()))

    def poll(self) -> StepResult | None:
        return self._take(block=False, timeout_s=0)

    def wait(self, timeout_s: float) -> StepResult | None:
        return self._take(block=True, timeout_s=timeout_s)

    def close(self) -> None:
        self._epoch = _NO_EPOCH
        self._jobs.put(None)
        self._thread.join()

    def _take(self, *, block: bool, timeout_s: float) -> StepResult | None:
        try:
            done = self._done.get(block, timeout_s)
        except queue.Empty:
            return None
        if isinstance(done, Exception):
            raise RunnerError(f"{type(done).__name__}: {done}") from done
        return done

    def _device(self) -> None:
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                if not isinstance(job, _Job):
                    job()
                elif job.plan.epoch == self._epoch:
                    self._done.put(self._attempt(job))

    def _attempt(self, job: _Job) -> StepResult | Exception:
        try:
            return self._step.run(job)
        except Exception as error:  # noqa: BLE001 - its owner raises it
            self._epoch = _NO_EPOCH
            return error


class _Step:
    """What the device does; all of it in the device thread."""

    def __init__(self, model: CausalModel, capacity: Capacity) -> None:
        self._model = model
        self._cache = KvCache.allocate(
            model.layers, capacity.num_blocks, capacity.block_size, model.dtype, model.device
        )
        self._host_blocks = HostBlocks(self._cache, capacity.host_blocks)
        self._attention = GatherAttention(self._cache)
        self._slots = [Slot(capacity, model.device) for _ in range(2)]
        self._lanes = Lanes(capacity.lanes, model.device)
        self._chooser = Chooser(capacity, model.device)

    def forget(self) -> None:
        self._lanes.forget()

    def run(self, job: _Job) -> StepResult:
        plan = job.plan
        begin_ns = time.monotonic_ns()
        slot = self._slots[plan.step % 2]
        slot.plan_bytes.numpy()[: len(plan.raw)] = plan.raw
        self._host_blocks.copy(plan.copies_out, plan.copies_in)
        copied_ns = time.monotonic_ns()
        status, token, logprobs = self._compute(plan, slot)
        computed_ns = time.monotonic_ns()
        row_status, row_token = status.numpy().copy(), token.numpy().copy()
        end_ns = time.monotonic_ns()
        timing = StepTiming(
            job.received_ns, job.submitted_ns, end_ns,
            begin_ns, copied_ns, copied_ns, computed_ns, computed_ns, end_ns,
        )  # fmt: skip
        return StepResult(plan.epoch, plan.step, row_status, row_token, timing, logprobs)

    def _compute(self, plan: BatchPlan, slot: Slot) -> tuple[Tensor, Tensor, StepLogprobs | None]:
        """row_status [R] uint8, row_token [R] int32, and log-probabilities if any are wanted."""
        rows, tokens = plan.rows, plan.tokens
        row_lane, token_ids = slot.row_lane[:rows].long(), slot.token_ids[:tokens]
        last = slot.query_indptr[1 : rows + 1].long() - 1
        masked = self._lanes.carry_over(row_lane, slot.row_flags[:rows], last, token_ids)
        kv_slots = slot.kv_slots[:tokens].long()
        if masked.any():
            row_of_token = torch.from_numpy(np.repeat(np.arange(rows), np.diff(plan.query_indptr)))
            kv_slots[masked[row_of_token]] = self._cache.scrap_slot
        self._chooser.remember(plan, token_ids)
        self._attention.begin(plan, kv_slots)
        samples = torch.from_numpy(np.flatnonzero(plan.row_flags & RowFlag.SAMPLES))
        with attending(self._attention):
            logits = self._model.forward(token_ids.long(), slot.positions[:tokens], last[samples])
        sampled, logprobs = self._chooser.choose(plan, slot, samples, logits)
        return *self._lanes.settle(row_lane, samples, masked, sampled), logprobs
