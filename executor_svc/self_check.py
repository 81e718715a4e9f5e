"""The check at load that a model computes through our attention what it computes through its own.

Two short sequences run alone through the model's eager attention, and again packed side by side,
in chunks, through the paged cache. If they attend to each other, if a layer keeps state of its own,
or if an optimised layer is wrong, the logits differ. Costs a few dozen tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from executor_svc import attention
from executor_svc.attention import attending
from executor_svc.errors import UnsupportedModel
from executor_svc.gather_attention import GatherAttention
from executor_svc.kv_cache import KvCache
from executor_svc.model import CausalModel
from svc_wire.frames import Int32s

_LENGTHS = (7, 5)
_STEPS = (((0, 3), (0, 2)), ((3, 4), (2, 5)), ((4, 7), (5, 5)))
"""For each step the part [start:stop) of each sequence: first chunks, mixed with decode, alone."""
_BLOCK_SIZE = 4

# Largest difference, as a share of the largest logit, and the share of positions that keep to it.
# In half precision a mixture of experts may send a token elsewhere for a rounding error; sequences
# that see each other are wrong in most positions.
_TOLERANCES = {torch.float32: (1e-3, 1.0), torch.bfloat16: (0.1, 0.7), torch.float16: (0.05, 0.7)}


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The part of a plan that attention needs."""

    query_indptr: Int32s
    block_indptr: Int32s
    block_ids: Int32s
    positions: Int32s


@torch.inference_mode()
def reference_logits(model: CausalModel) -> list[Tensor]:
    """Logits [length, vocab] of each sequence through the model's own eager attention."""
    module = model.module
    module.set_attn_implementation("eager")
    try:
        return [
            module(
                input_ids=ids[None],
                position_ids=torch.arange(len(ids), device=model.device)[None],
                use_cache=False,
            ).logits[0]
            for ids in _sequences(model)
        ]
    finally:
        module.set_attn_implementation(attention.NAME)


@torch.inference_mode()
def check_against(model: CausalModel, reference: list[Tensor]) -> None:
    """Raises UnsupportedModel if packed and chunked rows do not give the reference logits."""
    kind = model.module.config.model_type
    found = _packed_logits(model)
    close, needed = _TOLERANCES[model.dtype]
    for ours, theirs in zip(found, reference, strict=True):
        error = (ours.float() - theirs.float()).abs().amax(dim=-1) / theirs.float().abs().max()
        if not (error <= close).float().mean() >= needed:  # written so that NaN fails
            raise UnsupportedModel(
                kind,
                f"its logits differ by {float(error.max()):.2g} of their range when sequences "
                f"are computed side by side",
            )


def _sequences(model: CausalModel) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(model.vocab_size, (n,), generator=generator).to(model.device)
        for n in _LENGTHS
    ]


def _packed_logits(model: CausalModel) -> list[Tensor]:
    blocks = -(-max(_LENGTHS) // _BLOCK_SIZE)
    cache = KvCache.allocate(
        model.layers, blocks * len(_LENGTHS), _BLOCK_SIZE, model.dtype, model.device
    )
    gather = GatherAttention(cache)
    # Interleaved, so that a mistake in addressing hits the other sequence.
    tables = np.arange(cache.num_blocks, dtype=np.int32).reshape(blocks, -1).T
    sequences, logits = _sequences(model), [list[Tensor]() for _ in _LENGTHS]
    for parts in _STEPS:
        active = [(s, *part) for s, part in enumerate(parts) if part[0] < part[1]]
        rows, kv_slots = _rows(tables, active)
        gather.begin(rows, torch.from_numpy(kv_slots).to(model.device))
        ids = torch.cat([sequences[s][start:stop] for s, start, stop in active])
        positions = torch.from_numpy(rows.positions).to(model.device)
        with attending(gather):
            out = model.forward(ids, positions.long(), torch.arange(len(ids), device=model.device))
        pieces = torch.split(out, [stop - start for _, start, stop in active])
        for (s, _, _), piece in zip(active, pieces, strict=True):
            logits[s].append(piece)
    return [torch.cat(pieces) for pieces in logits]


def _rows(tables: Int32s, active: list[tuple[int, int, int]]) -> tuple[_Rows, Int32s]:
    """The rows of one step, and the kv_slots of their tokens."""
    blocks = [tables[s][: -(-stop // _BLOCK_SIZE)] for s, _, stop in active]
    positions = [np.arange(start, stop, dtype=np.int32) for _, start, stop in active]
    kv_slots = [
        table[position // _BLOCK_SIZE] * _BLOCK_SIZE + position % _BLOCK_SIZE
        for table, position in zip(blocks, positions, strict=True)
    ]

    def indptr(pieces: list[Int32s]) -> Int32s:
        return np.cumsum([0, *map(len, pieces)], dtype=np.int32)

    rows = _Rows(
        indptr(positions), indptr(blocks), np.concatenate(blocks), np.concatenate(positions)
    )
    return rows, np.concatenate(kv_slots).astype(np.int64)
