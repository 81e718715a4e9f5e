"""Higher priority first; within a priority, first come, first served.

With `ageing_s=T`, a request of priority p is treated like one of priority p + 1 that came T seconds
later. Since everybody ages at the same rate, their order never changes while they wait: ageing is a
matter of the moment of arrival, and costs nothing.
"""

from typing import ClassVar

from scheduler_svc.core.policies.base import Key, Policy, RequestView
from scheduler_svc.core.policies.options import Options


class Priority(Policy):
    name: ClassVar[str] = "priority"

    def configure(self, options: Options) -> None:
        self._ageing_s = options.number("ageing_s", 0.0)

    def key(self, request: RequestView) -> Key:
        if not self._ageing_s:
            return (-request.priority, request.arrival)
        return (request.submitted_s - request.priority * self._ageing_s, request.arrival)
