"""The attention of mixed steps: our kernel against FlashInfer's, and which one a step would take.

    python -m bench.attention

Steps are written as `rows@keys` that decode, and prompts or pieces of them as `tokens/keys`. One
layer of Llama-3.1-8B's shape, bf16; several layers take turns, so that no key is in a cache.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from executor_svc.attention import LayerCall, LayerShape
from executor_svc.cuda.attention import StepShape, TritonAttention
from executor_svc.cuda.attention_costs import is_ours_quicker
from executor_svc.cuda.flashinfer_attention import FlashInferAttention
from executor_svc.kv_cache import KvCache

_SHAPE = LayerShape(query_heads=32, kv_heads=8, key_dim=128, value_dim=128)
_LAYERS, _BLOCKS, _BLOCK_SIZE, _REPEATS = 8, 20_000, 16, 5
_AHEAD_CYCLES = 3_000_000
"""The device waits for so long, that all launches are there when the clock starts."""
STEPS = (
    "32@600 400/400", "32@600 1024/1024", "32@600 2048/2048",
    "32@600 512/8192", "32@600 512/32768", "32@600 16/32768",
    "128@600 512/512", "200@1000 128/128", "32@4000 512/512", "4@16000 512/512",
    "400/400", "2048/2048", "8192/8192",
)  # fmt: skip


def rows_of(step: str) -> list[tuple[int, int]]:
    """(tokens, keys) of each row."""
    rows: list[tuple[int, int]] = []
    for part in step.split():
        if "@" in part:
            count, keys = map(int, part.split("@"))
            rows += [(1, keys)] * count
        else:
            tokens, keys = map(int, part.split("/"))
            rows.append((tokens, keys))
    return rows


def plan_of(rows: list[tuple[int, int]]) -> Any:
    """As much of a plan as attention looks at."""
    tokens, keys = np.array(rows, np.int32).T
    blocks = -(-keys // _BLOCK_SIZE)
    query_indptr, block_indptr = (
        np.append(0, each.cumsum()).astype(np.int32) for each in (tokens, blocks)
    )
    return SimpleNamespace(
        query_indptr=query_indptr, block_indptr=block_indptr, row_stop=keys, row_start=keys - tokens
    )


def main() -> None:
    device = torch.device("cuda:0")
    cache = KvCache.allocate([_SHAPE] * _LAYERS, _BLOCKS, _BLOCK_SIZE, torch.bfloat16, device)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    table = Table("step", "ours, us", "FlashInfer, us", "taken", title=torch.cuda.get_device_name())
    for step in STEPS:
        rows = rows_of(step)
        plan = plan_of(rows)
        slot: Any = _slot(plan, device)
        ours = _microseconds(TritonAttention(cache, [slot]), plan)
        others = _microseconds(FlashInferAttention(cache, [slot], _SHAPE), plan)
        takes_ours = is_ours_quicker(plan, _SHAPE.query_heads, _SHAPE.kv_heads)
        table.add_row(step, f"{ours:.0f}", f"{others:.0f}", "ours" if takes_ours else "FlashInfer")
    Console().print(table)


def _slot(plan: Any, device: torch.device) -> SimpleNamespace:
    def there(array: Any) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int32)).to(device)

    return SimpleNamespace(
        query_indptr=there(plan.query_indptr),
        block_indptr=there(plan.block_indptr),
        row_stop=there(plan.row_stop),
        last_page=there((plan.row_stop - 1) % _BLOCK_SIZE + 1),
        block_ids=torch.randperm(_BLOCKS, device=device)[: plan.block_indptr[-1]].int(),
        result=torch.zeros(1, device=device),
    )


def _microseconds(attention: TritonAttention, plan: Any) -> float:
    tokens = plan.row_stop - plan.row_start
    rows, count = len(tokens), int(tokens.sum())
    step = StepShape(0, rows, count, max(2, int(tokens.max())), rows)
    shape = count, _SHAPE.query_heads, _SHAPE.key_dim
    query = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(query)
    if isinstance(attention, FlashInferAttention):
        attention.plan_work(plan, step)
    attention.begin(step)
    best = float("inf")
    for _ in range(_REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_AHEAD_CYCLES)
        begin.record()
        for layer in range(_LAYERS):
            call = LayerCall(layer, _SHAPE.key_dim**-0.5, None, None, None)
            attention.attend_cached(query, call, out)
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / _LAYERS * 1e3)
    return best


if __name__ == "__main__":
    typer.run(main)
