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

from typing import Annotated

import msgspec

from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.codec import Codec, Message
from svc_wire.ids import EPOCH_BITS, STEP_BITS

PROTOCOL_VERSION = 2

Epoch = Annotated[int, msgspec.Meta(ge=0, lt=2**EPOCH_BITS)]
Step = Annotated[int, msgspec.Meta(ge=0, lt=2**STEP_BITS)]
"""Bounded when decoded, so that what a peer says always fits a sequence word."""


class Hello(Message, frozen=True):
    """A scheduler asks to take over."""

    protocol: int
    epoch_seen: Epoch
    """Highest epoch that this scheduler knows; the new one will be higher."""


class Welcome(Message, frozen=True):
    """The executor is ready and serves this scheduler from now on."""

    protocol: int
    epoch: Epoch
    ring_path: str
    capacity: Capacity
    model: ModelInfo
    kv_epoch: Epoch = 0
    kv_step: Step = 0
    """KV memory is as the steps up to this one, of an earlier epoch, left it; (0, 0): it is void.
    Whoever knows what they left may go on from there."""


class Refused(Message, frozen=True):
    """The executor cannot serve this scheduler; trying again does not help."""

    reason: str


class PlanReady(Message, frozen=True):
    """Doorbell: a plan was published while the executor slept."""

    epoch: Epoch
    step: Step


class StepDone(Message, frozen=True):
    """Doorbell: a result was published while the scheduler slept."""

    epoch: Epoch
    step: Step


class StepFailed(Message, frozen=True):
    """A step raised. The executor has dropped the epoch; the scheduler says Hello again."""

    epoch: Epoch
    step: Step
    reason: str


class Beat(Message, frozen=True):
    """Still here. The sender's epoch (0: none) and last completed or published step."""

    epoch: Epoch
    step: Step


ToExecutor = Hello | PlanReady | Beat
ToScheduler = Welcome | Refused | StepDone | StepFailed | Beat

to_executor: Codec[ToExecutor] = Codec(ToExecutor)
to_scheduler: Codec[ToScheduler] = Codec(ToScheduler)
