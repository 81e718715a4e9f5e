"""The kernel that a mixed step's attention takes is the one that measured quicker."""

from types import SimpleNamespace

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


@pytest.mark.parametrize("step", MEASURED)
def test_the_quicker_one_is_taken(step: tuple[tuple[int, int], tuple[int, int]]) -> None:
    (singles, keys), (tokens, stop) = step
    row_stop = np.array([keys] * singles + [stop], np.int32)
    row_start = row_stop - np.array([1] * singles + [tokens], np.int32)
    plan = SimpleNamespace(row_start=row_start, row_stop=row_stop)
    ours, others = MEASURED[step]
    taken = ours if is_ours_quicker(plan) else others  # type: ignore[arg-type]
    assert taken <= 1.1 * min(ours, others)
