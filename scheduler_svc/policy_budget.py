"""A policy that always answers, but late: what its answers may take in all.

They are given while the executor computes the step before. So they cost nothing as long as the
next plan is ready in time, and each second beyond that is one in which the executor waits:

    behind = what the answers took - what the executor computed - a tenth of the time

A policy that is behind by BEHIND_S is replaced. Whenever it has caught up, what was before is
forgotten; so a burst of requests, or a process that got no processor, is made up for.
"""

from typing import NamedTuple

import structlog

from scheduler_svc.core import Policy, Scheduler
from scheduler_svc.meter import Meter

OWN_SHARE = 0.1
"""Of the time, whatever the executor does: so much of the throughput a policy may cost for ever."""
BEHIND_S = 2.0
SLOW_SHARE = 0.25
"""Beyond this share of the time between two looks, the log says that a policy is slow."""

log = structlog.get_logger(service="scheduler")


class _Sums(NamedTuple):
    """Seconds since the start: in answers, of the executor's computing, on the clock."""

    took_s: float
    busy_s: float
    clock_s: float

    def since(self, before: "_Sums") -> "_Sums":
        return _Sums(*(now - then for now, then in zip(self, before, strict=True)))


class PolicyBudget:
    """Of the policy in force."""

    def __init__(self, core: Scheduler, meter: Meter) -> None:
        self._core = core
        self._meter = meter
        self._policy: Policy | None = None
        self._last = self._since = _Sums(0.0, 0.0, 0.0)
        """At the last look, and when the policy was not behind last."""
        self._was_told = False

    def look(self, now_s: float, computing_s: float) -> None:
        """Adds up what has been since the last look; once a second or so. `now_s` never goes back.

        `computing_s`: for how long the executor has been at a step that is not committed yet, and
        so not in the meter's sum. It only counts for this look: what that step took is known later.

        It is a look at sums that are there anyway: a step costs nothing.
        """
        core = self._core
        now = _Sums(core.question.took_s, self._meter.busy_ns / 1e9, now_s)
        if core.policy is not self._policy:
            # What it took to put it in force has delayed no step.
            self._policy, self._last, self._since, self._was_told = core.policy, now, now, False
            return
        self._tell_slow(now.since(self._last))
        self._last = now
        spent = now.since(self._since)
        busy_s = spent.busy_s + computing_s
        behind_s = spent.took_s - busy_s - OWN_SHARE * spent.clock_s
        if behind_s <= 0:
            self._since = now
        elif behind_s > BEHIND_S:
            core.distrust_policy(
                f"its answers took {spent.took_s:.1f} s of {spent.clock_s:.1f} s, "
                f"in which the executor computed for {busy_s:.1f} s"
            )

    def _tell_slow(self, spent: _Sums) -> None:
        if spent.took_s > SLOW_SHARE * spent.clock_s and not self._was_told:
            self._was_told = True
            log.warning(
                "policy is slow",
                policy=self._core.policy_name,
                answers_s=round(spent.took_s, 3),
                executor_s=round(spent.busy_s, 3),
                of_s=round(spent.clock_s, 3),
            )
