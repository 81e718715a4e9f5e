"""Who gets which log-probabilities, and what a result must not lack."""

import numpy as np
import pytest

from scheduler_svc.core import ProtocolViolation
from scheduler_svc.core.logprobs import pick
from svc_wire.frames import StepLogprobs

TOKENS = np.array([70, 71, 72], np.int32)


def told(alternatives: int, rows: int = 4) -> StepLogprobs:
    """Row r has chosen -r, and alternatives 10 * r + k of -r - k / 10."""
    row, k = np.arange(rows)[:, None], np.arange(alternatives)
    return StepLogprobs(
        -np.arange(rows).astype(np.float32),
        (10 * row + k).astype(np.int32),
        (-row - k / 10).astype(np.float32),
    )


def asked(*counts: int) -> np.ndarray:
    return np.array(counts, np.uint8)


def test_each_gets_what_it_asked_for() -> None:
    found = pick(asked(1, 0, 3), TOKENS, np.array([0, 1, 3]), told(5))
    assert found is not None
    assert found.counts.tolist() == [1, 0, 3]
    assert found.ids.tolist() == [70, 72, 30, 31]
    np.testing.assert_allclose(found.values, [0, -3, -3, -3.1], rtol=1e-6)


def test_nobody_asked() -> None:
    assert pick(asked(0, 0, 0), TOKENS, slice(None), None) is None
    assert pick(asked(0, 0, 0), TOKENS, slice(None), told(5, rows=3)) is None


@pytest.mark.parametrize(("counts", "result"), [((1, 0, 0), None), ((2, 1, 0), told(0, rows=3))])
def test_a_result_that_lacks_some_cannot_be_true(
    counts: tuple[int, ...], result: StepLogprobs | None
) -> None:
    with pytest.raises(ProtocolViolation, match="log-probabilities"):
        pick(asked(*counts), TOKENS, slice(None), result)
