"""The paged KV cache: for each layer one tensor of keys and one of values, cut into blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from executor_svc.attention import LayerShape


@dataclass(frozen=True, slots=True, eq=False)
class KvCache:
    """Blocks [0:num_blocks) belong to the scheduler; block num_blocks is scrap.

    What must not be read by anybody (rows whose sequence has stopped, padding) is written to the
    scrap block. Flattened over the first two dimensions, the index of a token is its kv_slot.
    """

    num_blocks: int
    block_size: int
    keys: list[Tensor]
    """One a layer: [num_blocks + 1, block_size, Hk, D]."""
    values: list[Tensor]
    """One a layer: [num_blocks + 1, block_size, Hk, Dv]."""

    @classmethod
    def allocate(
        cls,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "KvCache":
        """A cache of zeros: finite numbers, so that masked-out garbage stays harmless."""

        def zeros(heads: int, dim: int) -> Tensor:
            shape = (num_blocks + 1, block_size, heads, dim)
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            num_blocks,
            block_size,
            [zeros(layer.kv_heads, layer.key_dim) for layer in layers],
            [zeros(layer.kv_heads, layer.value_dim) for layer in layers],
        )

    @property
    def scrap_slot(self) -> int:
        """The kv_slot for KV that nobody may read."""
        return self.num_blocks * self.block_size

    def flat(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys [slots, Hk, D] and values [slots, Hk, Dv] of a layer, addressed by kv_slot."""
        return self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)


def block_bytes(layers: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> int:
    """Memory of one KV block, all layers together."""
    return sum(layer.kv_elements for layer in layers) * block_size * dtype.itemsize
