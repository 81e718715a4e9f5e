"""Histories and penalties, against counting in plain Python."""

import random
from collections import Counter

import pytest
import torch

from executor_svc.penalties import OUTPUT, PROMPT, Histories, Penalties, penalise

pytestmark = pytest.mark.model

VOCAB = 12


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.parametrize("seed", range(5))
def test_cells_count_what_passed_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    histories = Histories(3, VOCAB, torch.device("cpu"))
    expected = [Counter[int]() for _ in range(3)]
    for _ in range(6):
        tokens = [
            (rng.randrange(3), rng.randrange(VOCAB), rng.random() < 0.5)
            for _ in range(rng.randrange(20))
        ]
        lanes, ids, is_output = zip(*tokens, strict=True) if tokens else ((), (), ())
        histories.extend(
            torch.tensor(lanes, dtype=torch.int64),
            torch.tensor(ids, dtype=torch.int64),
            torch.tensor(is_output, dtype=torch.bool),
        )
        for lane, token, output in tokens:
            expected[lane][token] = (
                expected[lane][token] + OUTPUT if output else expected[lane][token] | PROMPT
            )
    histories.begin(torch.tensor([1]))
    expected[1].clear()
    assert histories.cells.tolist() == [[c[token] for token in range(VOCAB)] for c in expected]


def test_each_penalty_does_its_own() -> None:
    """Tokens: not seen, in the prompt, once in the output, thrice there and in the prompt."""
    cells = torch.tensor([[0, PROMPT, OUTPUT, PROMPT + 3 * OUTPUT]] * 4, dtype=torch.int32)
    logits = torch.tensor([[4.0, 4.0, -4.0, 4.0]] * 4)
    penalties = Penalties(column(2, 1, 1, 2), column(0, 0.5, 0, 0.5), column(0, 0, 0.25, 0.25))
    assert penalise(logits, cells, penalties).tolist() == [
        [4.0, 2.0, -8.0, 2.0],
        [4.0, 4.0, -4.5, 3.5],
        [4.0, 4.0, -4.25, 3.25],
        [4.0, 2.0, -8.75, 0.75],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_penalties_keep_every_bit(dtype: torch.dtype) -> None:
    """Whatever the cells of their lanes hold: nobody keeps those."""
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[0, 3], logits[1, 5] = -torch.inf, -0.0
    cells = torch.full((2, VOCAB), 7, dtype=torch.int32)
    none = Penalties(column(1, 1), column(0, 0), column(0, 0))
    assert torch.equal(penalise(logits, cells, none), logits.float())
    assert logits.dtype is dtype


def test_impossible_tokens_stay_impossible() -> None:
    logits = torch.tensor([[-torch.inf, 1.0]])
    cells = torch.tensor([[PROMPT + OUTPUT, 0]], dtype=torch.int32)
    scores = penalise(logits, cells, Penalties(column(0.5), column(-2), column(-2)))
    assert scores.tolist() == [[-torch.inf, 1.0]]
