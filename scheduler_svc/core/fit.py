"""Whether a request can ever be served: the door at which impossible ones are turned away."""

import math

import numpy as np

from scheduler_svc.core.types import Request
from svc_wire.capacity import Capacity
from svc_wire.frontend_link import Sampling
from svc_wire.ids import (
    LOGPROBS_MAX,
    PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    STOP_IDS_MAX,
    RejectReason,
)


def misfit(request: Request, capacity: Capacity) -> tuple[RejectReason, str] | None:
    """Why `request` can never be served with `capacity`; None if it can.

    Front ends have checked it before, with better words; what passes here cannot hurt its
    neighbours in a batch.
    """
    prompt, total = len(request.prompt), len(request.prompt) + request.max_tokens
    if prompt < 1 or request.max_tokens < 1:
        return RejectReason.INVALID, "prompt and max_tokens need at least one token"
    if not 0 <= request.min_tokens <= request.max_tokens:
        return RejectReason.INVALID, f"min_tokens must be 0 to {request.max_tokens}"
    if total > capacity.sequence_len_max:
        return RejectReason.TOO_LONG, (
            f"prompt ({prompt}) and max_tokens ({request.max_tokens}) make {total} tokens, "
            f"at most {capacity.sequence_len_max} fit"
        )
    if len(request.stop_ids) > STOP_IDS_MAX:
        return RejectReason.INVALID, f"more than {STOP_IDS_MAX} stop ids"
    if len(request.output) >= request.max_tokens:
        return RejectReason.INVALID, "the output is already complete"
    ids = [*request.stop_ids, int(request.prompt.min()), int(request.prompt.max())]
    if len(request.output):
        ids += [int(request.output.min()), int(request.output.max())]
    if min(ids) < 0 or max(ids) >= capacity.vocab_size:
        return RejectReason.INVALID, f"a token id is outside [0:{capacity.vocab_size})"
    if not _is_sound(request.sampling):
        return RejectReason.INVALID, f"sampling parameters out of bounds: {request.sampling}"
    if request.logprobs is not None and not 0 <= request.logprobs <= LOGPROBS_MAX:
        return RejectReason.INVALID, f"logprobs must be 0 to {LOGPROBS_MAX}"
    return None


def _is_sound(sampling: Sampling) -> bool:
    """The bounds of a plan's frame; NaN is in none of them."""
    return (
        0 <= sampling.temperature <= 100
        and math.isfinite(sampling.temperature)
        and 0 <= sampling.top_k <= np.iinfo(np.int32).max - 1
        and 0 < sampling.top_p <= 1
        and 0 <= sampling.min_p <= 1
        and -(2**63) <= sampling.seed < 2**63
        and REPETITION_PENALTY_MIN <= sampling.repetition_penalty <= PENALTY_MAX
        and -PENALTY_MAX <= sampling.presence_penalty <= PENALTY_MAX
        and -PENALTY_MAX <= sampling.frequency_penalty <= PENALTY_MAX
    )
