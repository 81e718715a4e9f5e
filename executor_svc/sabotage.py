"""A runner that breaks on purpose, so that tests can see what becomes of everybody else.

The request that breaks it is known by its seed, which every row of it carries.
"""

import os
import signal

import numpy as np

from executor_svc.runner import Runner, RunnerError
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.frames import BatchPlan, StepResult


class SabotagedRunner:
    """A Runner that does what `runner` does, except at certain requests.

    At a row with the seed `fail_seed` the step raises, as after a fault that can be caught; at one
    with `kill_seed` the process dies on the spot, as after one that cannot.
    """

    def __init__(self, runner: Runner, *, fail_seed: int | None, kill_seed: int | None) -> None:
        self._runner = runner
        self._fail_seed = fail_seed
        self._kill_seed = kill_seed

    @property
    def capacity(self) -> Capacity:
        return self._runner.capacity

    @property
    def model(self) -> ModelInfo:
        return self._runner.model

    def begin(self, epoch: int) -> None:
        self._runner.begin(epoch)

    def submit(self, plan: BatchPlan, received_ns: int) -> None:
        if self._kill_seed is not None and np.any(plan.seed == self._kill_seed):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fail_seed is not None and np.any(plan.seed == self._fail_seed):
            raise RunnerError("sabotage")
        self._runner.submit(plan, received_ns)

    def poll(self) -> StepResult | None:
        return self._runner.poll()

    def wait(self, timeout_s: float) -> StepResult | None:
        return self._runner.wait(timeout_s)

    def close(self) -> None:
        self._runner.close()
