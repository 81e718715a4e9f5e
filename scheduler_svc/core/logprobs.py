"""Which log-probabilities of a result go to whom: as many for each token as its request asked."""

import numpy as np

from scheduler_svc.core.types import Bytes, Indices, Int32s, OutputLogprobs, ProtocolViolation
from svc_wire.frames import StepLogprobs


def pick(
    asked: Bytes, tokens: Int32s, taken: slice | Indices, told: StepLogprobs | None
) -> OutputLogprobs | None:
    """Those of N tokens; None if nobody asked.

    `asked` [N] is 0, or 1 + the alternatives; `taken` are the rows of the step that the tokens
    came from. Raises ProtocolViolation if the result lacks some that were asked for.
    """
    if not np.count_nonzero(asked):
        return None
    if told is None or np.maximum.reduce(asked) > 1 + told.top.shape[1]:
        raise ProtocolViolation("a result lacks log-probabilities that its plan asked for")
    ids = np.concatenate([tokens[:, np.newaxis], told.top_ids[taken]], axis=1)
    values = np.concatenate([told.chosen[taken][:, np.newaxis], told.top[taken]], axis=1)
    wanted = np.arange(ids.shape[1]) < asked[:, np.newaxis]
    return OutputLogprobs(asked, ids[wanted], values[wanted])
