"""First come, first served."""

from typing import ClassVar

from scheduler_svc.core.policies.base import Key, RequestView


class Fcfs:
    name: ClassVar[str] = "fcfs"

    def key(self, view: RequestView) -> Key:
        return (view.arrival,)
