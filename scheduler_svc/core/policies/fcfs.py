"""First come, first served."""

from typing import ClassVar

from scheduler_svc.core.policies.base import Key, Policy, RequestView


class Fcfs(Policy):
    name: ClassVar[str] = "fcfs"

    def key(self, request: RequestView) -> Key:
        return (request.arrival,)
