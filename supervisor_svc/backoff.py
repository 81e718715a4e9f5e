"""When a service that has died is started again, and when that is no use any more."""

HEALTHY_S = 30.0
"""Whoever has lived so long had no part in the deaths before."""
PAUSE_S = 0.25
PAUSE_MAX_S = 5.0
"""Well below the front ends' outage timeout, so that each try can still save the streams."""


class Backoff:
    """One service's deaths in a row."""

    def __init__(self, restarts_max: int) -> None:
        self._restarts_max = restarts_max
        self.deaths = 0

    def pause_s(self, lived_s: float) -> float | None:
        """It died after `lived_s` of being up: the wait before the next start; None: give up.

        The first start follows at once, since streams wait; after that the pause doubles.
        """
        self.deaths = 1 if lived_s >= HEALTHY_S else self.deaths + 1
        if self.deaths > self._restarts_max:
            return None
        return min(PAUSE_MAX_S, PAUSE_S * 2 ** (self.deaths - 2)) if self.deaths > 1 else 0.0
