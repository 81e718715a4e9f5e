"""The seam of the executor: whatever executes plans is a Runner.

Steps run strictly in the order of `submit`. Between steps a runner keeps only KV, on the device and
in host memory, and what the host cannot know yet: each lane's last sampled token, whether it
stopped, and, for penalties, the history of its tokens. What a runner does with a plan:

0. The block copies: first `copies_out`, then `copies_in`. Steps before have been computed when a
   block is copied, and later ones read what was copied.
1. Carry-over: where a row has RowFlag.CARRY, its last input token is the lane's last sampled
   token. If that lane has stopped (its last sampled token was one of the stop ids), the row is
   MASKED: it writes no KV that anybody reads, samples nothing, and leaves the lane stopped.
2. Where a row has RowFlag.PENALISED, its input tokens join the lane's history: as prompt at
   positions below prompt_len, as output from there on. A row_start of 0 begins a new history.
3. Write the KV of the T input tokens to `kv_slots`; attend over [0:position] of each row through
   its blocks.
4. Where a row has RowFlag.SAMPLES, sample a token for position row_stop, never a stop id if the row
   has RowFlag.BAN_STOP. Penalties change the scores before anything else: repetition_penalty
   divides them if positive, and multiplies them if not, for every token of the history; then
   frequency_penalty comes off as often as a token is in the output, presence_penalty once.
   The token becomes the lane's last; the lane is stopped if it is a stop id, or if nothing could
   be sampled (ERROR). A sampling row without CARRY starts its lane afresh.
5. Where some row has `logprobs`, the result has StepLogprobs, as far as the row that asks for most.
"""

from typing import Protocol

from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.frames import BatchPlan, StepResult


class RunnerError(Exception):
    """A step cannot be executed; the epoch is over. The text goes to the log and the clients."""


class Runner(Protocol):
    """Executes batch plans in order. Used by one thread."""

    @property
    def capacity(self) -> Capacity: ...

    @property
    def model(self) -> ModelInfo: ...

    def begin(self, epoch: int) -> None:
        """Starts an epoch: forgets lanes and whatever is in flight.

        When it returns, no step of an older epoch runs or will run. KV memory stays as the steps
        that were completed left it.
        """

    def submit(self, plan: BatchPlan, received_ns: int) -> None:
        """Enqueues a step and returns as soon as the device has its orders.

        At most DEPTH_MAX + 1 steps are in flight. The plan's views stay valid until the step's
        result has been returned. Raises RunnerError.
        """

    def poll(self) -> StepResult | None:
        """The result of the oldest step in flight if it is complete. Never blocks.

        Raises RunnerError.
        """

    def wait(self, timeout_s: float) -> StepResult | None:
        """As poll, but blocks until the oldest step is complete or the time is up."""

    def close(self) -> None:
        """Frees device memory; no call may follow."""
