"""Settings are refused where they make no sense."""

import pytest

from scheduler_svc.core import SchedulerConfig


@pytest.mark.parametrize("depth", [-1, 3])
def test_a_depth_that_the_ring_does_not_hold_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="depth must be 0 to 2"):
        SchedulerConfig(depth=depth)


@pytest.mark.parametrize(
    "name", ["step_tokens_max", "running_max", "waiting_max", "losses_max", "overtakes_max"]
)
def test_a_bound_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        SchedulerConfig(**{name: 0})  # type: ignore[arg-type]
