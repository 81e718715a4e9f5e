"""Requests as nasty as the faults: repeats, shared prefixes, edges of blocks, tight limits.

A workload without repeats finds no bug of the prefix cache, one without aligned lengths none of its
borders, and stop ids that are never sampled test nothing.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from executor_svc.hash_model import expected_tokens
from scheduler_svc.core import Request
from svc_wire.capacity import Capacity
from svc_wire.frontend_link import Sampling

GREEDY = Sampling()


def draw_requests(rng: random.Random, capacity: Capacity, count: int) -> Iterator[Request]:
    """`count` requests, nearly all of which fit the capacity.

    In some worlds all have short prompts and long outputs: memory runs out while they run.
    """
    is_chatty = rng.random() < 0.5
    root = [rng.randrange(capacity.vocab_size) for _ in range(capacity.sequence_len_max)]
    hot = [root[: _prompt_length(rng, capacity)] for _ in range(2)]
    for _ in range(count):
        kind = rng.random()
        if kind < 0.4:
            prompt = rng.choice(hot)
        elif kind < 0.7:
            stem = root[: _prompt_length(rng, capacity)]
            prompt = [*stem[: -rng.randint(1, 4)], rng.randrange(capacity.vocab_size)]
        else:
            length = _prompt_length(rng, capacity)
            prompt = [rng.randrange(capacity.vocab_size) for _ in range(length)]
        if is_chatty:
            prompt = prompt[: rng.randint(1, capacity.sequence_len_max // 4 + 1)]
        yield _draw_request(rng, capacity, prompt, is_chatty)


def expected(request: Request, capacity: Capacity) -> list[int]:
    """What the request must produce, whatever happens to it."""
    return expected_tokens(
        request.prompt.tolist(),
        vocab_size=capacity.vocab_size,
        max_tokens=request.max_tokens,
        sampling=request.sampling,
        stop_ids=request.stop_ids,
        min_tokens=request.min_tokens,
    )


def _prompt_length(rng: random.Random, capacity: Capacity) -> int:
    most, size = capacity.sequence_len_max - 1, capacity.block_size
    length = rng.choice(
        [
            1,
            rng.randint(1, most),
            rng.randint(1, most // 3 + 1),
            rng.randint(1, most // 3 + 1),
            size * rng.randint(1, 2),
            size * rng.randint(1, 2) + rng.choice([-1, 1]),
            rng.randint(most // 2, most),
        ]
    )
    return min(max(length, 1), most)


def _draw_request(
    rng: random.Random, capacity: Capacity, prompt: list[int], is_chatty: bool
) -> Request:
    room = capacity.sequence_len_max - len(prompt)
    lengths = [room, room, room // 2 + 1] if is_chatty else [1, 2, rng.randint(3, 9), room // 3 + 1]
    max_tokens = min(rng.choice(lengths), room)
    if rng.random() < 0.03:
        max_tokens = room + 1  # can never fit
    sampling = GREEDY
    if rng.random() < 0.3:
        sampling = Sampling(
            temperature=rng.choice([0.0, 0.5, 1.0]),
            top_k=rng.choice([0, 3]),
            top_p=rng.choice([1.0, 0.5]),
            min_p=rng.choice([0.0, 0.1]),
            seed=rng.randrange(-(2**63), 2**63),
        )
    if rng.random() < 0.2:
        sampling = msgspec.structs.replace(
            sampling,
            repetition_penalty=rng.choice([1.0, 1.5]),
            presence_penalty=rng.choice([0.0, 0.5]),
            frequency_penalty=rng.choice([-1.0, 0.5]),
        )
    min_tokens = rng.choice([0, 0, 1, max_tokens, rng.randint(0, max_tokens)])
    request = Request(
        prompt=np.array(prompt, np.int32),
        max_tokens=max_tokens,
        sampling=sampling,
        priority=rng.choice([0, 0, 0, 1, 5]),
        tenant=rng.choice(["a", "b", "c"]),
        expected_tokens=rng.choice([0, 1, 10]),
        deadline_s=rng.choice([math.inf, 100.0, 300.0]),
        logprobs=rng.choice([None, None, None, 0, 2]),
    )
    if rng.random() < (0.8 if is_chatty else 0.5):
        return request
    # Stop ids that this very request would sample, some too early.
    output = expected(request, capacity)
    stop_ids = {rng.choice(output) for _ in range(rng.randint(1, 2))}
    stop_ids.add(rng.randrange(capacity.vocab_size))
    return replace(request, min_tokens=min_tokens, stop_ids=tuple(sorted(stop_ids)))
