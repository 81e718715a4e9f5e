"""What one scheduler can tell the next of the executor's KV memory: which full block holds what.

KV memory stays when schedulers change. What would go with the old one is only the knowledge of what
lies where; with it, a resubmitted sequence finds its own blocks by the ordinary way of the prefix
cache, and nothing else has to know that there was a change.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class KvIndex:
    """N blocks that nobody holds, the first to be evicted first. Blocks and keys are unique."""

    blocks: npt.NDArray[np.int32]  # [N]
    keys: tuple[bytes, ...]  # [N], see `blocks.chain_key`

    def __len__(self) -> int:
        return len(self.keys)
