"""Values that cross the core's border, and what it may raise."""

import math
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from svc_wire.frontend_link import Sampling
from svc_wire.ids import DEPTH_MAX, FinishReason, RejectReason, SeqId

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
"""Numbers of lanes: numpy indexes with any other integer only after a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What was asked for; the executor's Capacity may bound it further."""

    depth: int = 1
    """Steps published beyond the one that is computed: 0 is synchronous, 1 the classic overlap."""
    step_tokens_max: int = 2048
    """Token budget of a step. Bounds how long decoding waits for a piece of somebody's prompt."""
    running_max: int = 256
    """Most sequences in the batch."""
    waiting_max: int = 1024
    """Most requests that wait; one more is rejected with QUEUE_FULL."""
    prefix_cache: bool = True
    losses_max: int = 2
    """So many losses in a row of the executor, with no token between, end the one request that is
    left as their possible cause; see `suspects`."""

    overtakes_max: int = 1000
    """Whoever waits longest goes next after so many later ones were admitted before it."""
    itl_target_ms: float = 0.0
    """Steps read so much of prompts that those who decode get their next token within this time,
    as far as the executor's pace lets one tell; 0: as much as the token budget allows."""

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= DEPTH_MAX:
            raise ValueError(f"depth must be 0 to {DEPTH_MAX}, is {self.depth}")
        for name in (
            "step_tokens_max",
            "running_max",
            "waiting_max",
            "losses_max",
            "overtakes_max",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """A prompt and its limits, as accepted from a front end."""

    prompt: Int32s  # [P], P >= 1
    max_tokens: int
    output: Int32s = field(default_factory=lambda: np.empty(0, np.int32))
    """Tokens that were committed before, by a scheduler that is gone: the output goes on from
    there. Fewer than max_tokens."""
    was_accepted: bool = False
    """By a scheduler that is gone; neither a full queue nor the policy turns it away now."""
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    priority: int = 0
    tenant: str = ""
    expected_tokens: int = 0
    """Output tokens that the client expects; 0: it did not say."""
    deadline_s: float = math.inf
    """When the answer is of no use any more, on the clock of `add`."""
    logprobs: int | None = None
    """Log-probabilities of its tokens are wanted, with so many alternatives to each."""

    @property
    def needs_history(self) -> bool:
        """Its tokens depend on all before them by more than their KV: each of them must pass the
        executor as an input token, from position 0. KV from elsewhere would spare some of that.
        """
        return self.sampling.has_penalties


class Rejection(Exception):
    """A request was not accepted. Nothing of it is kept."""

    def __init__(self, reason: RejectReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class PolicyFault(Exception):
    """A policy gave an answer that cannot be used, or raised."""


class ProtocolViolation(Exception):
    """A result contradicts its plan: the executor cannot be trusted any further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a sequence ended. There is exactly one for each accepted request."""

    seq_id: SeqId
    reason: FinishReason
    message: str = ""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that the prefix cache spared at the first admission."""
    output_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStep:
    """A step whose frame is sealed and must now be published."""

    epoch: int
    step: int
    tokens: int
    """Input tokens of all rows."""
    stop: Int32s  # [R] where each row's positions end
    first_rows: tuple[SeqId, ...]
    """Sequences that get their first row ever with this step."""
    copies_out: int
    """KV blocks that are copied to host memory before it."""
    copies_in: int
    """KV blocks that are copied back before it, thereafter."""

    @property
    def rows(self) -> int:
        return len(self.stop)


@dataclass(frozen=True, slots=True, eq=False)
class OutputLogprobs:
    """Log-probabilities of N tokens, M in all: of each token as many as its request asked for,
    first its own, then those of the alternatives, the most likely first."""

    counts: Bytes  # [N] 0 for tokens whose request asked for none
    ids: Int32s  # [M]
    values: Float32s  # [M]

    def by_token(self) -> list[list[tuple[int, float]]]:
        """[N] the (id, log-probability) pairs of each token."""
        pairs = zip(self.ids.tolist(), self.values.tolist(), strict=True)
        return [list(islice(pairs, count)) for count in self.counts.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """What a committed step brought: N tokens and the sequences that ended with it."""

    seq_ids: Int64s  # [N]
    indices: Int32s  # [N] index of the token among its sequence's output tokens
    tokens: Int32s  # [N]
    endings: tuple[Ending, ...]
    logprobs: OutputLogprobs | None = None
    """None if no request of these tokens asked."""


NOTHING = StepOutput(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), ())


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters and levels of this moment."""

    waiting: int
    running: int
    in_flight: int
    blocks_total: int
    blocks_free: int
    steps: int
    tokens: int
    preemptions: int
    swaps_out: int
    """Pre-emptions after which the KV was copied out to host memory instead of being dropped."""
    swaps_in: int
    """Sequences that went on from there; the others ended, or their KV had lost its beginning."""
    recomputed_tokens: int
    """Input tokens that were planned before: their KV was dropped, or lost with the executor."""
    cache_hit_tokens: int
    policy_faults: int
    """Policies that gave an unusable answer and were replaced by fcfs."""
    reliefs: int
    """Requests that were overtaken too often and went before everybody."""
