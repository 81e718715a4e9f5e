"""The hash model: a model whose next token is a hash of all tokens before it, and no torch.

What a request must produce is a pure function of the request, computed here without any scheduler,
cache or batch. `HashRunner` arrives at the same tokens only if every KV slot held what it should
have.

    cell(p, token) = p * 2**32 + token + 1
    state(tokens)  = sum over positions p of weight(p) * cell(p, token[p])   mod 2**64
    next token     = finalise(state + salt(sampling)) mod vocab_size
    if banned      : the next one upwards that is not a stop id
    penalties      : add strength(sampling) * sum of mark(token, in the output) to the state

Weights are odd, so that any single wrong token changes the state. The sampling parameters and the
seed count only at a temperature above 0, as with a real model; penalties count always. What they
see of the history is what a real sampler sees: which tokens, how often, of prompt or output.
Log-probabilities are another function of position and token.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from svc_wire.frames import BatchPlan, Int32s, StepLogprobs
from svc_wire.frontend_link import Sampling
from svc_wire.ids import LOGPROBS_MAX, NO_TOKEN

UInt64s = npt.NDArray[np.uint64]

GREEDY = Sampling()
_MASK = (1 << 64) - 1
_SALTS = tuple(0x9E37_79B9_7F4A_7C15 * (2 * k + 1) & _MASK for k in range(1, 6))


def expected_tokens(
    prompt: Sequence[int],
    *,
    vocab_size: int,
    max_tokens: int,
    sampling: Sampling = GREEDY,
    stop_ids: Sequence[int] = (),
    min_tokens: int = 0,
) -> list[int]:
    """The output of a request: `max_tokens` tokens, or fewer if the last one is a stop id.

    Stop ids are not sampled among the first `min_tokens`.
    """
    state = sum(weight(p) * cell(p, token) for p, token in enumerate(prompt))
    added, output, strong = salt(sampling), list[int](), strength(sampling)
    added += strong * sum(mark(token, is_output=False) for token in prompt)
    for position in range(len(prompt), len(prompt) + max_tokens):
        token = finalise(state + added) % vocab_size
        if len(output) < min_tokens:
            while token in stop_ids:
                token = (token + 1) % vocab_size
        output.append(token)
        if token in stop_ids:
            break
        state += weight(position) * cell(position, token)
        added += strong * mark(token, is_output=True)
    return output


def expected_logprobs(
    position: int, token: int, alternatives: int, vocab_size: int
) -> tuple[float, list[tuple[int, float]]]:
    """Of the token sampled for `position`, and (id, log-probability) of each alternative.

    Multiples of 1/64, so that a float32 holds them.
    """
    chosen = -((token * 31 + position * 7) % 1024) / 64
    ids = range(min(alternatives, vocab_size))
    return chosen, [((token + k) % vocab_size, chosen - k / 8) for k in ids]


def cell(position: int, token: int) -> int:
    """What stands in a KV slot; 0 is an empty one."""
    return (position << 32) + token + 1


def weight(position: int) -> int:
    """The odd 64-bit factor of the token at `position`."""
    return finalise(position * _SALTS[0]) | 1


def salt(sampling: Sampling) -> int:
    """What the sampling parameters add to the state; floats as the wire's 32 bits."""
    if sampling.temperature <= 0:
        return 0
    floats = np.array([sampling.temperature, sampling.top_p, sampling.min_p], np.float32)
    parts: tuple[int, ...] = (*floats.view(np.uint32).tolist(), sampling.top_k, sampling.seed)
    return sum(part * factor for part, factor in zip(parts, _SALTS, strict=True)) & _MASK


def mark(token: int, *, is_output: bool) -> int:
    """What a token adds to a history."""
    return finalise(2 * token + is_output + 1)


def strength(sampling: Sampling) -> int:
    """How much a history counts; 0 without penalties."""
    if not sampling.has_penalties:
        return 0
    floats = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    parts: list[int] = np.array(floats, np.float32).view(np.uint32).tolist()
    return sum(part * factor for part, factor in zip(parts, _SALTS, strict=False)) & _MASK


def finalise(state: int) -> int:
    """Mixes all bits of `state` mod 2**64."""
    x = state & _MASK
    x = (x ^ x >> 30) * 0xBF58_476D_1CE4_E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D0_49BB_1331_11EB & _MASK
    return x ^ x >> 31


def salts(plan: BatchPlan) -> UInt64s:
    """`salt` for all rows of a plan, [R]."""
    total = plan.seed.view(np.uint64) * np.uint64(_SALTS[4])
    total += plan.top_k.astype(np.uint64) * np.uint64(_SALTS[3])
    floats = (plan.temperature, plan.top_p, plan.min_p)
    for values, factor in zip(floats, _SALTS, strict=False):
        total += values.view(np.uint32).astype(np.uint64) * np.uint64(factor)
    total *= plan.temperature > 0
    return total


def marks(plan: BatchPlan, token_ids: Int32s) -> UInt64s:
    """The sum [R] of the marks of each row's input tokens."""
    outputs = plan.positions >= plan.prompt_len.repeat(np.diff(plan.query_indptr))
    each = finalise_all(2 * token_ids.astype(np.uint64) + outputs + np.uint64(1))
    sums: UInt64s = np.add.reduceat(each, plan.query_indptr[:-1])
    return sums


def strengths(plan: BatchPlan) -> UInt64s:
    """`strength` for all rows of a plan that have penalties, [R]."""
    total = np.zeros(len(plan.repetition_penalty), np.uint64)
    floats = (plan.repetition_penalty, plan.presence_penalty, plan.frequency_penalty)
    for values, factor in zip(floats, _SALTS, strict=False):
        total += values.view(np.uint32).astype(np.uint64) * np.uint64(factor)
    return total


def logprobs(plan: BatchPlan, token: Int32s, vocab_size: int) -> StepLogprobs | None:
    """`expected_logprobs` of the tokens [R], as far as rows of the plan ask."""
    most = int(plan.logprobs.max())
    if not most:
        return None
    chosen = -((token * 31 + plan.row_stop * 7) % 1024).astype(np.float32) / np.float32(64)
    index = np.arange(LOGPROBS_MAX if most > 1 else 0, dtype=np.int32)
    exists = index < vocab_size
    ids = np.where(exists, (token[:, None] + index) % vocab_size, NO_TOKEN).astype(np.int32)
    top = np.where(exists, chosen[:, None] - index / np.float32(8), -np.inf).astype(np.float32)
    return StepLogprobs(chosen, ids, top)


def finalise_all(states: UInt64s) -> UInt64s:
    """`finalise` for many states at once."""
    x = (states ^ states >> _30) * _FIRST
    x = (x ^ x >> _27) * _SECOND
    return x ^ x >> _31


_27, _30, _31 = (np.uint64(count) for count in (27, 30, 31))
_FIRST, _SECOND = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)
