"""Scheduling policies: the interface (`base`) and those that ship, by name."""

from scheduler_svc.core.policies.base import (
    API_VERSION,
    GroupView,
    Key,
    LoadView,
    Policy,
    RequestView,
    RunningView,
)
from scheduler_svc.core.policies.deadline import Deadline
from scheduler_svc.core.policies.fair import Fair
from scheduler_svc.core.policies.fcfs import Fcfs
from scheduler_svc.core.policies.options import OptionError, Options
from scheduler_svc.core.policies.prefix import Prefix
from scheduler_svc.core.policies.priority import Priority
from scheduler_svc.core.policies.sjf import Sjf

BY_NAME: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Fcfs, Priority, Sjf, Prefix, Fair, Deadline)
}

__all__ = [
    "API_VERSION",
    "BY_NAME",
    "Deadline",
    "Fair",
    "Fcfs",
    "GroupView",
    "Key",
    "LoadView",
    "OptionError",
    "Options",
    "Policy",
    "Prefix",
    "Priority",
    "RequestView",
    "RunningView",
    "Sjf",
]
