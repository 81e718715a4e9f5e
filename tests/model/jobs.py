"""Random jobs for runners of the tiny model: they end by stop ids as well as by length."""

import random

from tests.support.planner import Job


def stopping_jobs(
    count: int,
    seed: int,
    *,
    prompt_lens: tuple[int, int] = (1, 90),
    max_tokens: int = 40,
    arrivals: int = 40,
    vocab_size: int = 261,
    stop_ids: tuple[int, ...] = (),
) -> list[Job]:
    """Each has two random stop ids after `stop_ids`, and arrives at one of `arrivals` steps."""
    rng = random.Random(seed)
    return [
        Job(
            [rng.randrange(5, vocab_size) for _ in range(rng.randint(*prompt_lens))],
            max_tokens=max_tokens,
            stop_ids=(*stop_ids, rng.randrange(5, vocab_size), rng.randrange(5, vocab_size)),
            arrives_at_step=rng.randrange(arrivals),
        )
        for _ in range(count)
    ]
