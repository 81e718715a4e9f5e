"""Higher priority first; within a priority, first come, first served."""

from typing import ClassVar

from scheduler_svc.core.policies.base import Key, RequestView


class Priority:
    name: ClassVar[str] = "priority"

    def key(self, view: RequestView) -> Key:
        return (-view.priority, view.arrival)
