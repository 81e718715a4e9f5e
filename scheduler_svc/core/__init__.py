"""The scheduler's decisions: a pure core. Events in, plans and endings out.

No clock, no I/O, no threads, no randomness, no torch: the same events give the same plans. The
shell around it (scheduler_svc.service) owns sockets, time and the shared file.
"""

from scheduler_svc.core import policies
from scheduler_svc.core.kv_index import KvIndex
from scheduler_svc.core.policies import Policy
from scheduler_svc.core.question import PolicyStalled, Question
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import (
    Ending,
    Int32s,
    PlannedStep,
    PolicyFault,
    ProtocolViolation,
    Rejection,
    Request,
    SchedulerConfig,
    Stats,
    StepOutput,
)

__all__ = [
    "Ending",
    "Int32s",
    "KvIndex",
    "PlannedStep",
    "Policy",
    "PolicyFault",
    "PolicyStalled",
    "ProtocolViolation",
    "Question",
    "Rejection",
    "Request",
    "Scheduler",
    "SchedulerConfig",
    "Stats",
    "StepOutput",
    "policies",
]
