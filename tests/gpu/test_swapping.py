"""KV between the device and page-locked memory: no bit changes, and no token."""

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from executor_svc.runner import Runner
from svc_wire.capacity import Capacity
from tests.model.jobs import stopping_jobs
from tests.support.planner import Planner

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def _runner(folder: Path, num_blocks: int, host_blocks: int) -> Runner:
    from executor_svc.cuda.runner import CudaRunner
    from executor_svc.model import load_model

    model = load_model(folder, torch.float32, torch.device("cuda:0"))
    capacity = Capacity(
        num_blocks=num_blocks, block_size=4, rows_max=16, tokens_max=96, lanes=32,
        model_len_max=160, vocab_size=model.vocab_size, host_blocks=host_blocks,
    )  # fmt: skip
    return CudaRunner(model, capacity, "tiny")


@pytest.fixture(scope="module")
def undisturbed(tiny_folder: Path) -> Iterator[Runner]:
    made = _runner(tiny_folder, num_blocks=800, host_blocks=0)
    yield made
    made.close()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few blocks at a time, and memory in many pieces."""
    from executor_svc.cuda import block_swap

    monkeypatch.setattr(block_swap, "STAGING_BYTES", 3000)
    monkeypatch.setattr(block_swap, "_SEGMENT_BYTES", 5000)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("pieces", ["large", "small"])
def test_swapped_equals_undisturbed(
    tiny_folder: Path,
    undisturbed: Runner,
    depth: int,
    pieces: str,
    request: pytest.FixtureRequest,
) -> None:
    if pieces == "small":
        request.getfixturevalue("small_pieces")
    jobs = stopping_jobs(20, depth)
    expected = Planner(undisturbed, jobs, depth=depth, chunk_max=29).run()
    runner = _runner(tiny_folder, num_blocks=60, host_blocks=50)
    planner = Planner(
        runner, jobs, seed=depth, depth=depth, chunk_max=29, preempt_chance=0.2, swap_chance=0.8
    )
    try:
        outputs = planner.run()
    finally:
        runner.close()
    assert outputs == expected
    assert planner.swaps > 10


def _parts(cache: object, block: int) -> list[torch.Tensor]:
    return [part[block].clone() for part in (*cache.keys, *cache.values)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("pieces", ["large", "small"])
def test_copies_are_done_in_their_order(pieces: str, request: pytest.FixtureRequest) -> None:
    """Out and in and out again without a look from the host; then every bit is where it belongs."""
    from executor_svc.attention import LayerShape
    from executor_svc.cuda.block_swap import BlockSwap
    from executor_svc.kv_cache import KvCache

    if pieces == "small":
        request.getfixturevalue("small_pieces")
    device, rng = torch.device("cuda:0"), random.Random(0)
    compute = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    shapes = [LayerShape(4, 2, 8, 8), LayerShape(4, 2, 16, 4)]
    with torch.cuda.stream(compute):
        cache = KvCache.allocate(shapes, 40, 4, torch.bfloat16, device)
        for part in (*cache.keys, *cache.values):
            part.normal_()
        swap = BlockSwap(cache, 30, compute)
    compute.synchronize()
    content = [_parts(cache, block) for block in range(40)]
    host: dict[int, list[torch.Tensor]] = {}
    for _ in range(30):
        out = list(zip(rng.sample(range(40), 20), rng.sample(range(30), 20), strict=True))
        for block, place in out:
            host[place] = content[block]
        known = rng.sample(sorted(host), 10)
        into = list(zip(rng.sample(range(40), 10), known, strict=True))
        for block, place in into:
            content[block] = host[place]
        pairs = torch.tensor([*out, *into], dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)  # the pairs are made on another stream
        plan = SimpleNamespace(
            block_ids=np.empty(0), copies_out=np.array(out), copies_in=np.array(into)
        )
        swap.enqueue(plan, SimpleNamespace(block_ids=pairs.view(-1)))  # type: ignore[arg-type]
    torch.cuda.synchronize(device)
    swap.close()
    for block in range(40):
        found = _parts(cache, block)
        assert all(torch.equal(a, b) for a, b in zip(found, content[block], strict=True)), block


def test_rows_past_the_plan_do_not_take_host_blocks_for_blocks() -> None:
    """They are padding of a graph's bucket; the copies stand where their tables would."""
    from executor_svc.cuda.device_slot import DeviceSlot
    from executor_svc.cuda.step_kernels import resolve_carry_over
    from executor_svc.slots import Lanes

    device = torch.device("cuda:0")
    capacity = Capacity(
        num_blocks=8, block_size=4, rows_max=8, tokens_max=8, lanes=8, model_len_max=16,
        vocab_size=50, host_blocks=99,
    )  # fmt: skip
    slot, scrap = DeviceSlot(capacity, device), capacity.num_blocks
    slot.rows_word.fill_(2)
    slot.query_indptr[:3] = torch.tensor([0, 1, 2])
    slot.block_indptr[:3] = torch.tensor([0, 2, 3])
    slot.row_stop[:2] = torch.tensor([6, 2])
    slot.row_lane[:2] = torch.tensor([0, 1])
    slot.block_ids[:7] = torch.tensor([1, 2, 3, 5, 98, 6, 97])
    resolve_carry_over(slot, Lanes(8, device), 4, scrap * 4, 4)
    assert slot.block_indptr[:5].tolist() == [0, 2, 3, 4, 5]
    assert slot.block_ids[:5].tolist() == [1, 2, 3, scrap, scrap]
    assert slot.kv_slots[2:4].tolist() == [scrap * 4] * 2


def test_a_configuration_gets_what_it_asks_for(tiny_folder: Path) -> None:
    from executor_svc.assembly import make_runner
    from executor_svc.config import ExecutorConfig

    config = ExecutorConfig(
        model=str(tiny_folder), dtype="float32", device="cuda", rows_max=8, num_blocks=60,
        block_size=4, model_len_max=160, swap_bytes=1 << 20,
    )  # fmt: skip
    made = make_runner(config)
    try:
        assert 0 < made.capacity.host_blocks <= 1 << 20
        assert made.capacity.block_copy_ns > 0
        jobs = stopping_jobs(20, 7)
        planner = Planner(made, jobs, depth=1, preempt_chance=0.2, swap_chance=1.0)
        assert planner.run() == Planner(made, jobs, depth=0).run()
        assert planner.swaps
    finally:
        made.close()
