"""The kernel that a mixed step's attention takes is the one that measured quicker."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from executor_svc.cuda.attention_costs import is_ours_quicker

MEASURED = {
    ((32, 600), (400, 400)): (53, 109),
    ((32, 600), (1024, 1024)): (99, 123),
    ((32, 600), (2048, 2048)): (223, 181),
    ((32, 600), (512, 8192)): (311, 288),
    ((32, 600), (512, 32768)): (1063, 754),
    ((128, 600), (512, 512)): (160, 389),
    ((200, 1000), (128, 128)): (279, 919),
    ((32, 4000), (512, 512)): (182, 496),
    ((4, 16000), (512, 512)): (546, 256),
    ((0, 0), (400, 400)): (16, 13),
    ((0, 0), (2048, 2048)): (163, 90),
    ((0, 0), (8192, 8192)): (2101, 970),
}
"""((rows of one token, their keys), (tokens of another row, its keys)): microseconds of a layer of
Llama-3.1-8B's shape, ours and FlashInfer's, on one H200 (`python -m bench.attention`)."""


LLAMA_8B = 32, 8


def plan_of(rows: list[tuple[int, int]]) -> Any:
    """As much of a plan as is looked at: (tokens, keys) of each row."""
    tokens, keys = np.array(rows, np.int32).T
    return SimpleNamespace(row_start=keys - tokens, row_stop=keys)


@pytest.mark.parametrize("step", MEASURED)
def test_the_quicker_one_is_taken(step: tuple[tuple[int, int], tuple[int, int]]) -> None:
    (singles, keys), longer = step
    ours, others = MEASURED[step]
    taken = (
        ours if is_ours_quicker(plan_of([(1, keys)] * singles + [longer]), *LLAMA_8B) else others
    )
    assert taken <= 1.1 * min(ours, others)


@pytest.mark.parametrize("tail", [(2, 100_000), (16, 32_768), (8, 8192)])
def test_one_row_with_a_long_context_takes_its_time_in_turns(tail: tuple[int, int]) -> None:
    """Be it of one token or of some: what is computed side by side does not help it."""
    assert not is_ours_quicker(plan_of([(1, 600)] * 32 + [tail]), *LLAMA_8B)


def test_more_kv_heads_make_more_of_the_rows_that_decode() -> None:
    plan = plan_of([(1, 600)] * 32 + [(2048, 2048)])
    assert not is_ours_quicker(plan, *LLAMA_8B)
    assert is_ours_quicker(plan, 32, 32)


def test_prompts_alone_are_not_ours() -> None:
    assert not is_ours_quicker(plan_of([(400, 400), (30, 30)]), *LLAMA_8B)
