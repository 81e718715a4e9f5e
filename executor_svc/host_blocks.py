"""KV blocks in host memory: how they lie there, how many there are, how long a copy takes.

    host block    | layer 0 keys | layer 0 values | layer 1 keys | layer 1 values | ...

A host block holds one KV block of all layers side by side, so that it moves in one piece. The cache
has a tensor for each part instead; `strips` pairs them.
"""

import time

import torch
from torch import Tensor

from executor_svc.config import ExecutorConfig
from executor_svc.errors import OutOfMemory
from executor_svc.host_memory import available_bytes
from executor_svc.kv_cache import KvCache
from svc_wire.frames import Int32s

_PROBE_BYTES, _PROBE_BLOCKS = 64 << 20, 64
"""How much is copied at most to see how long it takes."""


class HostBlocks:
    """Host blocks [0:count) of a cache that is in host memory itself: there and back by the CPU."""

    def __init__(self, cache: KvCache, count: int) -> None:
        # Not filled: it takes memory only as far as it is used.
        flat = torch.empty(count, block_elements(cache), dtype=cache.keys[0].dtype)
        self._strips = strips(cache, flat)

    def copy(self, out: Int32s, into: Int32s) -> None:
        """Copies `out` [C, 2], then `into` [D, 2]: pairs of a device block and a host block."""
        for pairs, is_out in ((out, True), (into, False)):
            if not len(pairs):
                continue
            device, host = torch.from_numpy(pairs.T.astype("int64"))
            for cached, strip in self._strips:
                if is_out:
                    strip.index_copy_(0, host, cached.index_select(0, device))
                else:
                    cached.index_copy_(0, device, strip.index_select(0, host))


def block_elements(cache: KvCache) -> int:
    """Numbers in one block, all layers together."""
    return sum(part[0].numel() for part in (*cache.keys, *cache.values))


def strips(cache: KvCache, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Each tensor of the cache [blocks, ...] with its strip [N, ...] of `flat`, N host blocks."""
    pairs, begin = [], 0
    for layer in zip(cache.keys, cache.values, strict=True):
        for part in layer:
            end = begin + part[0].numel()
            pairs.append((part, flat[:, begin:end].view(len(flat), *part.shape[1:])))
            begin = end
    return pairs


def find_host_blocks(
    config: ExecutorConfig, block_bytes: int, useful: int, device: torch.device, default_bytes: int
) -> tuple[int, int]:
    """Capacity's host_blocks, at most `useful` of them, and block_copy_ns. Raises OutOfMemory."""
    available = available_bytes()
    wanted = config.swap_bytes
    if wanted is None:
        wanted = min(default_bytes, available // 2)
    count = config.host_blocks
    if count is None:
        # Of a tiny model there would be millions, and the frames have room to name each.
        count = min(wanted // block_bytes, useful)
    if count * block_bytes > available:
        raise OutOfMemory(
            f"swapping needs {count * block_bytes >> 20} MiB of host memory, of which "
            f"{available >> 20} MiB are available: lower --swap-memory"
        )
    return count, _copy_ns(block_bytes, device) if count else 0


def _copy_ns(block_bytes: int, device: torch.device) -> int:
    """How long it takes to copy a block from the device to the host, or back: the average.

    Block by block, as if no two were neighbours.
    """
    is_cuda = device.type == "cuda"
    count = max(1, min(_PROBE_BLOCKS, _PROBE_BYTES // block_bytes))
    here = torch.empty(count, block_bytes, dtype=torch.uint8, pin_memory=is_cuda)
    there = torch.empty(count, block_bytes, dtype=torch.uint8, device=device)
    took_ns = 0
    for _ in range(2):  # the first time the memory is new to both
        begin_ns = time.perf_counter_ns()
        for host, block in zip(here, there, strict=True):
            host.copy_(block, non_blocking=True)
            block.copy_(host, non_blocking=True)
        if is_cuda:
            torch.cuda.synchronize(device)
        took_ns = time.perf_counter_ns() - begin_ns
    return max(1, took_ns // (2 * count))
