"""What scheduler and executor say to each other beside the frames.

    scheduler (DEALER)                       executor (ROUTER, binds executor.sock)
      Hello          ──────────────────────►
                     ◄──────────────────────  Welcome | Refused
      plan in its frame, plan_word
      PlanReady      ──── if it sleeps ─────►
                                              result in its frame, result_word
                     ◄──── if it sleeps ────  StepDone
                     ◄──────────────────────  StepFailed (the epoch is over)
      Beat           ◄─────────────────────►  Beat

The executor serves one scheduler at a time: a Hello begins a new epoch and fences the old one.
"""

from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.codec import Codec, Message

PROTOCOL_VERSION = 1


class Hello(Message, frozen=True):
    """A scheduler asks to take over."""

    protocol: int
    epoch_seen: int
    """Highest epoch that this scheduler knows; the new one will be higher."""


class Welcome(Message, frozen=True):
    """The executor is ready and serves this scheduler from now on."""

    protocol: int
    epoch: int
    ring_path: str
    capacity: Capacity
    model: ModelInfo


class Refused(Message, frozen=True):
    """The executor cannot serve this scheduler; trying again does not help."""

    reason: str


class PlanReady(Message, frozen=True):
    """Doorbell: a plan was published while the executor slept."""

    epoch: int
    step: int


class StepDone(Message, frozen=True):
    """Doorbell: a result was published while the scheduler slept."""

    epoch: int
    step: int


class StepFailed(Message, frozen=True):
    """A step raised. The executor has dropped the epoch; the scheduler says Hello again."""

    epoch: int
    step: int
    reason: str


class Beat(Message, frozen=True):
    """Still here. The sender's epoch (0: none) and last completed or published step."""

    epoch: int
    step: int


ToExecutor = Hello | PlanReady | Beat
ToScheduler = Welcome | Refused | StepDone | StepFailed | Beat

to_executor: Codec[ToExecutor] = Codec(ToExecutor)
to_scheduler: Codec[ToScheduler] = Codec(ToScheduler)
