"""Log-probabilities of the model's own distribution: log_softmax of the logits as they come.

Before bans, penalties, temperature and filters, so that they say what the model thought, and not
what the request made of it. `measure` must see the logits before a sampler changes them.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from executor_svc.recipe import Told
from svc_wire.ids import LOGPROBS_MAX, NO_TOKEN

_NEVER = float("-inf")


class Measured(NamedTuple):
    log_sum: Tensor  # [S] float32, log of the sum of exp(logit)
    top_ids: Tensor  # [S, K] int32, the most likely first; K is 0 or LOGPROBS_MAX
    top: Tensor  # [S, K] float32


def measure(logits: Tensor, told: Told) -> Measured:
    """What must be taken from logits [S, V]."""
    log_sum = logits.float().logsumexp(dim=-1)
    if told is not Told.TOP:
        nothing = log_sum.new_empty(len(log_sum), 0)
        return Measured(log_sum, nothing.to(torch.int32), nothing)
    values, ids = logits.topk(min(LOGPROBS_MAX, logits.shape[1]), dim=-1)
    missing = (0, LOGPROBS_MAX - ids.shape[1])
    top = _clean(values.float() - log_sum[:, None])
    return Measured(
        log_sum,
        pad(ids.to(torch.int32), missing, value=NO_TOKEN),
        pad(top, missing, value=_NEVER),
    )


def of_chosen(logits: Tensor, token: Tensor, measured: Measured) -> Tensor:
    """[S] float32, of the tokens [S] that were sampled from these logits.

    Banned ids may have been made impossible meanwhile: nobody has sampled those.
    """
    logit = logits.gather(1, token.clamp(min=0).long()[:, None])[:, 0]
    return _clean(logit.float() - measured.log_sum)


def _clean(logprobs: Tensor) -> Tensor:
    """At most 0, which rounding may overstep, and no NaN, which rows in error have."""
    return logprobs.nan_to_num(nan=_NEVER, neginf=_NEVER).clamp(max=0)
