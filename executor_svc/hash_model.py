"""The hash model: a model whose next token is a hash of all tokens before it, and no torch.

What a request must produce is a pure function of the request, computed here without any scheduler,
cache or batch. `HashRunner` arrives at the same tokens only if every KV slot held what it should
have.

    cell(p, token) = p * 2**32 + token + 1
    state(tokens)  = sum over positions p of weight(p) * cell(p, token[p])   mod 2**64
    next token     = finalise(state + salt(sampling)) mod vocab_size
    if banned      : the next one upwards that is not a stop id

Weights are odd, so that any single wrong token changes the state. The sampling parameters and the
seed count only at a temperature above 0, as with a real model.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from svc_wire.frames import BatchPlan
from svc_wire.frontend_link import Sampling

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
    added, output = salt(sampling), list[int]()
    for position in range(len(prompt), len(prompt) + max_tokens):
        token = finalise(state + added) % vocab_size
        if len(output) < min_tokens:
            while token in stop_ids:
                token = (token + 1) % vocab_size
        output.append(token)
        if token in stop_ids:
            break
        state += weight(position) * cell(position, token)
    return output


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


def finalise_all(states: UInt64s) -> UInt64s:
    """`finalise` for many states at once."""
    x = (states ^ states >> _30) * _FIRST
    x = (x ^ x >> _27) * _SECOND
    return x ^ x >> _31


_27, _30, _31 = (np.uint64(count) for count in (27, 30, 31))
_FIRST, _SECOND = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)
