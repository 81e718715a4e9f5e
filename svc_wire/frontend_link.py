"""What front ends and scheduler say to each other.

    front end (DEALER)                        scheduler (ROUTER, binds scheduler.sock)
      Attach          ──────────────────────►
                      ◄──────────────────────  Attached, then Status whenever readiness changes
      Submit          ──────────────────────►
                      ◄──────────────────────  Outputs ... (or Rejected)
      Abort           ──────────────────────►
                      ◄──────────────────────  Outputs with the Finished of the key
      Ping            ──────────────────────►
                      ◄──────────────────────  Status
      AskPolicy       ──────────────────────►
                      ◄──────────────────────  PolicyInForce
      Detach          ──────────────────────►

A front end that detaches or vanishes leaves its requests as orphans: for a while the scheduler goes
on with them, and whoever submits one of the same stream name takes it over, with the tokens since.

A front end names a request by a key of its own: an unsigned 64-bit number that it never reuses.
Every submitted key ends exactly once: with a Rejected, or with a Finished (when another front end
takes the request over, with one that says ABORT). An Abort of a key that has ended is ignored. A
scheduler that does not know a front end (it was restarted) answers anything but Attach with
Unknown; the front end attaches again and submits its live requests once more, with the output that
they have: it keeps them, so that a scheduler may vanish at any moment.
"""

from typing import Annotated

import msgspec

from svc_wire.capacity import ModelInfo
from svc_wire.codec import Codec, Message
from svc_wire.ids import FinishReason, RejectReason

PROTOCOL_VERSION = 2

Key = Annotated[int, msgspec.Meta(ge=0)]
"""An unsigned 64-bit number."""

STREAM_BYTES = 16
"""Length of a stream's name: nobody guesses that of another."""

_INT32_BYTES, _UINT64_BYTES = 4, 8


class Sampling(Message, frozen=True):
    """How tokens are chosen. All values are checked by the front end, and resolved: no absences."""

    temperature: float = 0.0
    """0 is greedy."""
    top_k: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0
    """Signed 64-bit. The token at a position is a pure function of logits, seed and position."""
    repetition_penalty: float = 1.0
    """Scores of tokens of prompt and output are divided by it if positive, else multiplied."""
    presence_penalty: float = 0.0
    """Taken off the scores of tokens of the output, once."""
    frequency_penalty: float = 0.0
    """Taken off the scores of tokens of the output, as often as they occur there."""

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


class Attach(Message, frozen=True):
    protocol: int
    name: str
    """For logs."""


class Submit(Message, frozen=True):
    key: Key
    prompt: bytes
    """Token ids, little-endian int32."""
    max_tokens: int
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    """Ids that end the sequence, end-of-sequence ids included unless the request ignores them."""
    sampling: Sampling = Sampling()
    priority: int = 0
    """Higher goes first, where the policy heeds it."""
    tenant: str = ""
    output: bytes = b""
    """Token ids that a scheduler which is gone delivered before. The output goes on from there, and
    so do its indices."""
    expected_tokens: int = 0
    """Output tokens that the client expects, for policies that heed it; 0: it did not say."""
    deadline_ns: int = 0
    """CLOCK_MONOTONIC when the answer is of no use any more; 0: never."""
    was_accepted: bool = False
    """A scheduler that is gone had accepted it: this one must not turn it away for lack of room."""
    stream: bytes = b""
    """Names the answer whatever front end has it: STREAM_BYTES, drawn at random. If a request of
    this name is alive and has begun with this prompt and output, it gets this key, and goes on."""

    logprobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Log-probabilities of the tokens are wanted, with so many alternatives to each."""

    def __post_init__(self) -> None:
        if len(self.stream) not in (0, STREAM_BYTES):
            raise ValueError(f"a stream's name of {len(self.stream)} bytes")
        for ids in (self.prompt, self.output):
            if len(ids) % _INT32_BYTES:
                raise ValueError(f"token ids of {len(ids)} bytes, not whole int32s")


class Abort(Message, frozen=True):
    key: Key
    reason: FinishReason


class Ping(Message, frozen=True):
    pass


class AskPolicy(Message, frozen=True):
    """What policy is in force? With a name: put that one in force first."""

    ticket: Key
    """Comes back with the answer."""
    name: str = ""
    options: dict[str, str] = msgspec.field(default_factory=dict)


class Detach(Message, frozen=True):
    pass


class Attached(Message, frozen=True):
    protocol: int
    model: ModelInfo
    vocab_size: int
    sequence_len_max: int
    """Most tokens of one sequence, prompt and output together, that can ever be served."""


class Unknown(Message, frozen=True):
    """The scheduler does not know this front end: attach (again)."""


class Rejected(Message, frozen=True):
    key: Key
    reason: RejectReason
    message: str


class TenantUsage(Message, frozen=True):
    """Sums of one tenant since the scheduler's start."""

    tenant: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int


class PolicyInForce(Message, frozen=True):
    """The answer to AskPolicy: what holds now."""

    ticket: Key
    error: str
    """Why the policy that was asked for is not in force; empty if it is, or none was."""
    name: str
    available: tuple[str, ...]
    """Names that AskPolicy takes."""
    faults: int
    """Policies that were replaced by fcfs, as an answer of theirs could not be used."""
    last_fault: str
    reliefs: int
    """Requests that were overtaken too often and went before everybody."""
    tenants: tuple[TenantUsage, ...]


class Finished(Message, frozen=True):
    """The end of a key, with what it cost."""

    key: Key
    reason: FinishReason
    message: str
    """For FinishReason.ERROR: what happened. Else empty."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that the prefix cache spared at the first admission."""
    output_tokens: int
    preemptions: int
    queued_ns: int
    """From the scheduler's receipt to the first plan with a row of it."""
    running_ns: int
    """From that plan to the end."""
    busy_share: float
    """Share of running_ns in which the executor computed (any request), 0 to 1."""


class Outputs(Message, frozen=True):
    """What a step brought for one front end. Tokens of one key arrive gapless, in order."""

    keys: bytes
    """uint64[n], little-endian: the key of each token."""
    indices: bytes
    """int32[n]: its index among the key's output tokens."""
    tokens: bytes
    """int32[n]."""
    finished: tuple[Finished, ...]
    """Ends, to be handled after the tokens."""
    logprob_counts: bytes = b""
    """uint8[n]: how many log-probabilities each token has, its own among them; empty: none has."""
    logprob_ids: bytes = b""
    """int32[m], the sum of the counts: of each token its own id, then the most likely ones."""
    logprobs: bytes = b""
    """float32[m]."""

    def __post_init__(self) -> None:
        count = len(self.tokens) // _INT32_BYTES
        if (len(self.keys), len(self.indices), len(self.tokens)) != (
            count * _UINT64_BYTES,
            count * _INT32_BYTES,
            count * _INT32_BYTES,
        ):
            raise ValueError("keys, indices and tokens are not of one length")
        told = sum(self.logprob_counts) * _INT32_BYTES
        if len(self.logprob_counts) not in (0, count) or (
            (len(self.logprob_ids), len(self.logprobs)) != (told, told)
        ):
            raise ValueError("log-probabilities do not fit their counts")


class Pace(Message, frozen=True):
    """How busy the executor is and whether it waits for batches, by the device's clock.

    Leads and gaps are those of chained steps: steps that were planned while the one before was in
    flight, or at once when that was committed. A server without work has none.
    """

    busy_share: float
    """Share of the last seconds in which it computed, 0 to 1."""
    lead_ns: int
    """How long before it was needed a batch lay ready on the device: mean of the last seconds."""
    gap_ns: int
    """From the end of a step's computing to the begin of the next: mean of the last seconds."""
    gap_ns_max: int
    """The longest one of the last seconds."""
    busy_ns_total: int
    """This and the following are sums since the scheduler's start."""
    chained_total: int
    lead_ns_total: int
    gap_ns_total: int


class Status(Message, frozen=True):
    """The scheduler's state, also the sign that it is alive."""

    ready: bool
    """An executor is attached and makes progress."""
    reason: str
    """Why not ready; empty if ready."""
    policy: str
    depth: int
    waiting: int
    running: int
    blocks_total: int
    blocks_free: int
    """Free or reclaimable: cached blocks that nobody uses count as free."""
    steps: int
    """Committed since the scheduler's start."""
    tokens: int
    """Output tokens committed since the scheduler's start."""
    preemptions: int
    swaps_out: int
    """Pre-emptions after which the KV was copied to host memory."""
    swaps_in: int
    """Sequences that went on from such a copy."""
    policy_faults: int
    """Policies that were replaced by fcfs."""
    epochs_lost: int
    """Epochs that ended under this scheduler: an executor died, hung, failed or was replaced."""
    pace: Pace


ToScheduler = Attach | Submit | Abort | Ping | Detach | AskPolicy
ToFrontend = Attached | Unknown | Rejected | Outputs | Status | PolicyInForce

to_scheduler: Codec[ToScheduler] = Codec(ToScheduler)
to_frontend: Codec[ToFrontend] = Codec(ToFrontend)
