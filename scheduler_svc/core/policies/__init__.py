"""Scheduling policies, by name. A policy is one small pure function; see `base`."""

from scheduler_svc.core.policies.base import Key, Policy, RequestView
from scheduler_svc.core.policies.fcfs import Fcfs
from scheduler_svc.core.policies.priority import Priority

BY_NAME: dict[str, type[Policy]] = {policy.name: policy for policy in (Fcfs, Priority)}

__all__ = ["BY_NAME", "Fcfs", "Key", "Policy", "Priority", "RequestView"]
