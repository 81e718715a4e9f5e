"""KV that goes to the host and comes back is the same to the bit, in the blocks that were asked."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.model

import torch  # noqa: E402

from executor_svc.attention import LayerShape  # noqa: E402
from executor_svc.config import ExecutorConfig  # noqa: E402
from executor_svc.errors import OutOfMemory  # noqa: E402
from executor_svc.host_blocks import (  # noqa: E402
    HostBlocks,
    block_elements,
    find_host_blocks,
    strips,
)
from executor_svc.host_memory import available_bytes  # noqa: E402
from executor_svc.kv_cache import KvCache, block_bytes  # noqa: E402

CPU = torch.device("cpu")
LAYERS = [LayerShape(4, 2, 8, 6), LayerShape(4, 1, 3, 8)]
NOTHING = np.empty((0, 2), np.int32)


def random_cache(dtype: torch.dtype = torch.float32) -> KvCache:
    cache = KvCache.allocate(LAYERS, 6, 4, dtype, CPU)
    for part in (*cache.keys, *cache.values):
        part.copy_(torch.randn(part.shape))
    return cache


def pairs(*wanted: tuple[int, int]) -> np.ndarray:
    return np.array(wanted, np.int32)


def parts(cache: KvCache, block: int) -> list[torch.Tensor]:
    return [part[block].clone() for part in (*cache.keys, *cache.values)]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_out_and_back_in_changes_no_bit(dtype: torch.dtype) -> None:
    cache = random_cache(dtype)
    host, before = HostBlocks(cache, 5), [parts(cache, block) for block in range(7)]
    host.copy(pairs((1, 4), (5, 0)), NOTHING)
    for part in (*cache.keys, *cache.values):
        part.fill_(float("nan"))
    host.copy(NOTHING, pairs((3, 4), (0, 0)))
    assert same(parts(cache, 3), before[1])
    assert same(parts(cache, 0), before[5])
    assert all(parts(cache, block)[0].isnan().all() for block in (1, 2, 4, 5, 6))


def test_out_goes_before_in() -> None:
    cache = random_cache()
    host, before = HostBlocks(cache, 1), parts(cache, 2)
    host.copy(pairs((2, 0)), pairs((4, 0)))
    assert same(parts(cache, 4), before)


def test_two_go_to_each_others_place() -> None:
    cache = random_cache()
    host, first, second = HostBlocks(cache, 2), parts(cache, 0), parts(cache, 1)
    host.copy(pairs((0, 0), (1, 1)), pairs((1, 0), (0, 1)))
    assert same(parts(cache, 1), first)
    assert same(parts(cache, 0), second)


def test_a_host_block_is_as_large_as_a_block() -> None:
    cache = random_cache()
    assert block_elements(cache) * 4 == block_bytes(LAYERS, 4, torch.float32)
    flat = torch.arange(3 * block_elements(cache)).view(3, -1)
    seen = torch.cat([strip.flatten(1) for _, strip in strips(cache, flat)], 1)
    assert torch.equal(seen, flat), "every number has one place"


CONFIG = ExecutorConfig(model="any")


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 3),
        ({"swap_bytes": 2500}, 2),
        ({"swap_bytes": 0}, 0),
        ({"swap_bytes": 999}, 0),
        ({"swap_bytes": 9000}, 5),  # more would be of no use
        ({"host_blocks": 7, "swap_bytes": 1}, 7),
    ],
)
def test_what_is_asked_for_is_found(changes: dict[str, int], count: int) -> None:
    config = ExecutorConfig(model="any", **changes)  # type: ignore[arg-type]
    host_blocks, copy_ns = find_host_blocks(config, 1000, 5, CPU, default_bytes=3000)
    assert host_blocks == count
    assert (copy_ns > 0) == (count > 0)


def test_a_larger_block_takes_longer() -> None:
    config = ExecutorConfig(model="any", host_blocks=1)
    small, large = (
        min(find_host_blocks(config, size << 20, 1, CPU, 0)[1] for _ in range(3))
        for size in (1, 32)
    )
    assert small < large


def test_more_than_there_is_is_refused() -> None:
    config = ExecutorConfig(model="any", swap_bytes=2 * available_bytes())
    with pytest.raises(OutOfMemory, match="lower --swap-memory"):
        find_host_blocks(config, 1000, 1 << 40, CPU, default_bytes=0)


def test_the_default_leaves_half_of_the_memory() -> None:
    each = 1 << 20
    count, _ = find_host_blocks(CONFIG, each, 1 << 40, CPU, default_bytes=1 << 60)
    assert 0.3 < count * each / available_bytes() < 0.7
