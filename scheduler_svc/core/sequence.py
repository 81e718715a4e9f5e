"""A sequence: the scheduler's state for one stream of tokens, while it waits or runs."""

from enum import Enum

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.policies import Key, RequestView
from scheduler_svc.core.types import Ending, Request
from svc_wire.ids import FinishReason, Lane, SeqId

Int32s = npt.NDArray[np.int32]


class State(Enum):
    """The only three. Pre-empted is WAITING again, with a counter."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


TRANSITIONS = {
    (State.WAITING, State.RUNNING),  # admit
    (State.RUNNING, State.WAITING),  # pre-empt, executor lost
    (State.RUNNING, State.FINISHED),
    (State.WAITING, State.FINISHED),  # abort, or it no longer fits a new executor
}


class Sequence:
    """Facts that outlive a stay in the batch; what changes each step lives in the LaneTable."""

    __slots__ = (
        "admissions",
        "block_keys",
        "cached_tokens",
        "group",
        "key",
        "lane",
        "last_planned",
        "overtaken",
        "preemptions",
        "request",
        "seq_id",
        "state",
        "tokens",
        "tokens_told",
        "view",
    )

    def __init__(
        self, request: Request, view: RequestView, key: Key, group: str | None = ""
    ) -> None:
        self.seq_id = SeqId(view.arrival)
        self.request = request
        self.view = view
        """What a policy may know of it."""
        self.key = key
        """Its place in the policy's order; smaller goes first."""
        self.group = group
        """Where it waits; None: before everybody, as it was overtaken too often."""
        self.overtaken = 0
        """How many that came later were admitted while it was the eldest to wait."""
        self.tokens_told = 0
        """How many of its tokens the policy was told of as served."""
        self.state = State.WAITING
        self.lane: Lane | None = None
        """Set exactly while RUNNING."""
        self.tokens: Int32s = np.concatenate([request.prompt, request.output])
        """Known tokens, prompt first, as of the last time it was WAITING."""
        self.block_keys: list[bytes] = []
        """Chain keys of its leading full blocks, as far as somebody asked."""
        self.admissions = 0
        self.cached_tokens = 0
        """Prompt tokens that the prefix cache spared at the first admission."""
        self.preemptions = 0
        self.last_planned = 0
        """Positions that were planned when it left the batch last."""

    @property
    def length_limit(self) -> int:
        """Tokens at which it ends, prompt included."""
        return len(self.request.prompt) + self.request.max_tokens

    def move(self, state: State) -> None:
        assert (self.state, state) in TRANSITIONS, (self.seq_id, self.state, state)
        self.state = state

    def ending(self, reason: FinishReason, known: int, message: str = "") -> Ending:
        """Its one Ending, with `known` tokens in all."""
        return Ending(
            seq_id=self.seq_id,
            reason=reason,
            message=message,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            output_tokens=known - len(self.request.prompt),
            preemptions=self.preemptions,
        )


def view_of(seq_id: SeqId, request: Request, now_s: float) -> RequestView:
    """What a policy may know of a request."""
    return RequestView(
        arrival=int(seq_id),
        priority=request.priority,
        tenant=request.tenant,
        prompt_tokens=len(request.prompt),
        max_tokens=request.max_tokens,
        expected_tokens=request.expected_tokens,
        submitted_s=now_s,
        deadline_s=request.deadline_s,
    )
