"""Penalties: scores change with what a sequence has read and written.

The host cannot keep the counts: with steps in flight it does not know the tokens yet. The device
sees each of them pass as an input token, so it counts them there, a row of cells a lane:

    cell = PROMPT if the token is in the prompt, + OUTPUT for each time it is in the output

A history that begins at position 0 and misses no token is a pure function of the sequence, and so
is what is sampled with it: alone, in any batch, after a pre-emption or a restart.
"""

from typing import NamedTuple

import torch
from torch import Tensor

PROMPT, OUTPUT = 1, 2


class Penalties(NamedTuple):
    """What S rows ask for, [S] float32."""

    repetition: Tensor
    presence: Tensor
    frequency: Tensor


class Histories:
    """The cells of all lanes. Taken at the start, so that no first penalty of a night fails for
    lack of memory; touched by steps with penalties only."""

    def __init__(self, lanes: int, vocab: int, device: torch.device) -> None:
        self.cells = torch.zeros(lanes, vocab, dtype=torch.int32, device=device)

    def begin(self, lanes: Tensor) -> None:
        """Forgets the histories of `lanes` [N]."""
        self.cells[lanes] = 0

    def extend(self, lanes: Tensor, token_ids: Tensor, is_output: Tensor) -> None:
        """Adds a token to each of `lanes`; [N] each, int64 and bool. A lane may come often."""
        flat = self.cells.view(-1)
        index = lanes * self.cells.shape[1] + token_ids
        flat.index_add_(0, index, is_output.to(torch.int32) * OUTPUT)
        prompt = index[~is_output]
        flat[prompt] |= PROMPT


def histories_bytes(lanes: int, vocab: int) -> int:
    """Memory of the cells."""
    return lanes * vocab * torch.int32.itemsize


def penalise(logits: Tensor, cells: Tensor, penalties: Penalties) -> Tensor:
    """Scores in float32 [S, V] from logits [S, V] and cells [S, V], where 0 changes nothing."""
    repetition, presence, frequency = (column[:, None] for column in penalties)
    scores, count = logits.float(), cells // OUTPUT
    repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(cells > 0, repeated, scores)
    return scores - frequency * count - presence * (count > 0)
