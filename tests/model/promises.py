"""What every runner of the tiny model owes, whatever it computes on."""

import random

from executor_svc.runner import Runner
from svc_wire.frontend_link import Sampling
from tests.support.planner import Job, Planner


def seeded_sampling_does_not_depend_on_the_batch(runner: Runner) -> None:
    rng = random.Random(4)
    jobs = [
        Job(
            [rng.randrange(261) for _ in range(rng.randint(1, 30))],
            20,
            Sampling(
                temperature=rng.choice([0.0, 0.5, 1.3]),
                top_k=rng.choice([0, 7]),
                top_p=rng.choice([1.0, 0.8]),
                min_p=rng.choice([0.0, 0.1]),
                seed=rng.getrandbits(63),
            ),
            arrives_at_step=rng.randrange(10),
        )
        for _ in range(10)
    ]
    together = Planner(runner, jobs, depth=1, chunk_max=7, preempt_chance=0.1).run()
    alone = [Planner(runner, [job], depth=0, chunk_max=100).run()[0] for job in jobs]
    assert together == alone
    assert len({tuple(output) for output in together}) == len(jobs)


def min_tokens_keeps_stop_ids_away(runner: Runner) -> None:
    prompt = [50, 60, 70]
    free = Planner(runner, [Job(prompt, 12)]).run()[0]
    stops = tuple(dict.fromkeys(free))[:4]
    banned = Planner(runner, [Job(prompt, 12, stop_ids=stops, min_tokens=6)]).run()[0]
    assert len(banned) >= 6
    assert not set(banned[:6]) & set(stops)
