"""Small integers that cross process borders. Their values are part of the wire: never renumber."""

from enum import IntEnum, IntFlag
from typing import NewType

SeqId = NewType("SeqId", int)
"""A sequence, as the scheduler numbers it. Never reused."""

Lane = NewType("Lane", int)
"""A sequence's row in the persistent tables of scheduler and executor. Reused."""

STEP_BITS = 40
"""A step is below 2**STEP_BITS, so that one 64-bit word holds an epoch and a step."""

EPOCH_BITS = 24
"""An epoch is below 2**EPOCH_BITS: one new executor or scheduler a second for half a year."""

NO_TOKEN = -1
"""Stands where a row sampled nothing."""

CARRIED_TOKEN = 0
"""Placeholder for a token that is not known yet; the executor puts the lane's last token there."""

DEPTH_MAX = 2
"""Most steps that may be published beyond the one that is computed."""

STOP_IDS_MAX = 8
"""Most token ids (end-of-sequence ids included) that may end one sequence."""

LOGPROBS_MAX = 20
"""Most alternatives to a token whose log-probabilities may be asked for."""

PENALTY_MAX = 2.0
"""Largest penalty of any kind. Those that are subtracted may be negative, down to its opposite."""

REPETITION_PENALTY_MIN = 0.009999999776482582
"""0.01 as a float32. It divides: what is much smaller makes scores infinite."""


class RowFlag(IntFlag):
    """What a row of a plan asks for."""

    SAMPLES = 1
    """The row reaches the end of its sequence: sample one token for position `stop`."""
    CARRY = 2
    """The row's last input token is the lane's last sampled token; the host wrote a placeholder."""
    BAN_STOP = 4
    """The sequence is below its min_tokens: its stop ids must not be sampled."""
    PENALISED = 8
    """The sequence has penalties, so that its lane keeps a history of its tokens. All rows of the
    sequence have the flag, from position 0 on."""


class RowStatus(IntEnum):
    """What became of a row."""

    OK = 0
    """Computed; `tokens` holds the sampled token if the row samples."""
    STOPPED = 1
    """As OK, and the sampled token is one of the row's stop ids."""
    MASKED = 2
    """Not computed: the lane had already stopped when this carry-over row came up."""
    ERROR = 3
    """The row could not be computed (for example: its logits are not finite)."""


class FinishReason(IntEnum):
    """Why a sequence ended. One enum; the front end maps it once to the public one."""

    STOP_TOKEN = 1
    LENGTH = 2
    STOP_STRING = 3
    """Found by the front end, told to the scheduler with the abort."""
    ABORT = 4
    DEADLINE = 5
    ERROR = 6


class RejectReason(IntEnum):
    """Why a request was not accepted."""

    QUEUE_FULL = 1
    TOO_LONG = 2
    """Prompt plus max_tokens can never fit the model or the KV pool."""
    NO_EXECUTOR = 3
    DRAINING = 4
    INVALID = 5
    POLICY = 6
    """The scheduling policy turned it away; the message says why."""
