"""KV blocks between the device and page-locked host memory, on a stream of their own.

    compute   ... step N ───────── gather ─► a ── step N+1 ──────────── wait b ─ scatter ─ step N+2
    copies                              a ─ staging to host │ host to staging ─► b

What goes out is gathered into a staging buffer before its step, and leaves while that computes.
What comes in has its own staging buffer, which is filled while the step before computes. Events
order all of it, and the host waits for nothing. The copies of one plan, and of several, go through
the one stream in their order: no host block is read before it was written, or written too early.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.cuda import Event, Stream

from executor_svc.cuda.device_slot import DeviceSlot
from executor_svc.errors import OutOfMemory
from executor_svc.host_blocks import block_elements, strips
from executor_svc.kv_cache import KvCache
from svc_wire.frames import BatchPlan

STAGING_BYTES = 64 << 20
"""Of each of two buffers on the device; more blocks than fit go in several turns."""
_SEGMENT_BYTES = 256 << 20
"""Host memory is taken in pieces: torch rounds each up to a power of two."""


class BlockSwap:
    """Host blocks [0:count) of a cache on a CUDA device."""

    def __init__(self, cache: KvCache, count: int, compute: Stream) -> None:
        """Raises OutOfMemory."""
        first = cache.keys[0]
        elements = block_elements(cache)
        block_bytes = elements * first.dtype.itemsize
        self._compute = compute
        self._copies = Stream(first.device)
        self._per_segment = max(1, _SEGMENT_BYTES // block_bytes)
        try:
            self._segments = [
                torch.empty(
                    min(self._per_segment, count - begin),
                    elements,
                    dtype=first.dtype,
                    pin_memory=True,
                )
                for begin in range(0, count, self._per_segment)
            ]
        except RuntimeError as error:  # torch raises CUDA's errors as this
            raise OutOfMemory(
                f"the host gives no {count * block_bytes >> 20} MiB of page-locked memory: "
                f"lower --swap-memory ({str(error).splitlines()[0]})"
            ) from error
        self._rows = min(count, max(1, STAGING_BYTES // block_bytes))
        self._leaving = _Staging(cache, self._rows, elements)
        self._coming = _Staging(cache, self._rows, elements)

    @torch.inference_mode()
    def enqueue(self, plan: BatchPlan, slot: DeviceSlot) -> None:
        """Enqueues the plan's copies, which must be in `slot` when the compute stream gets here.

        What follows on that stream finds all that came in, and may write to what went out.
        """
        first, count = len(plan.block_ids), len(plan.copies_out) + len(plan.copies_in)
        pairs = slot.block_ids[first : first + 2 * count].view(count, 2)
        out, into = plan.copies_out[:, 1].tolist(), plan.copies_in[:, 1].tolist()
        with torch.cuda.stream(self._compute):
            blocks = pairs[:, 0].long()
            for begin in range(0, len(out), self._rows):
                hosts = out[begin : begin + self._rows]
                self._take_out(blocks[begin : begin + len(hosts)], hosts)
            for begin in range(0, len(into), self._rows):
                hosts = into[begin : begin + self._rows]
                at = len(out) + begin
                self._bring_in(blocks[at : at + len(hosts)], hosts)

    def _take_out(self, blocks: Tensor, hosts: Sequence[int]) -> None:
        staging, rows = self._leaving, len(hosts)
        self._compute.wait_event(staging.empty)
        for cached, strip in staging.strips:
            strip[:rows].copy_(cached.index_select(0, blocks))
        staging.full.record(self._compute)
        self._copies.wait_event(staging.full)
        with torch.cuda.stream(self._copies):
            for host, staged in self._runs(hosts, staging):
                host.copy_(staged, non_blocking=True)
        staging.empty.record(self._copies)

    def _bring_in(self, blocks: Tensor, hosts: Sequence[int]) -> None:
        staging, rows = self._coming, len(hosts)
        self._copies.wait_event(staging.empty)
        with torch.cuda.stream(self._copies):
            for host, staged in self._runs(hosts, staging):
                staged.copy_(host, non_blocking=True)
        staging.full.record(self._copies)
        self._compute.wait_event(staging.full)
        for cached, strip in staging.strips:
            cached.index_copy_(0, blocks, strip[:rows])
        staging.empty.record(self._compute)

    def _runs(self, hosts: Sequence[int], staging: "_Staging") -> Iterator[tuple[Tensor, Tensor]]:
        """The host blocks and their places in `staging`, neighbours in one piece."""
        begin = 0
        for end in range(1, len(hosts) + 1):
            is_over = end == len(hosts) or hosts[end] != hosts[end - 1] + 1
            if is_over or hosts[end] % self._per_segment == 0:
                segment, row = divmod(hosts[begin], self._per_segment)
                count = end - begin
                yield self._segments[segment][row : row + count], staging.flat[begin:end]
                begin = end

    def close(self) -> None:
        """Waits for what is still being copied."""
        self._copies.synchronize()


class _Staging:
    """Device memory for so many blocks as they lie in the host; made on the current stream."""

    def __init__(self, cache: KvCache, rows: int, elements: int) -> None:
        first = cache.keys[0]
        self.flat = torch.empty(rows, elements, dtype=first.dtype, device=first.device)
        self.strips = strips(cache, self.flat)
        self.full, self.empty = Event(), Event()
