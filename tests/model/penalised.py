"""Greedy decoding with penalties, one sequence at a time, nothing cached: what must come out.

Repetition penalties are transformers' own; the two that are subtracted are the formula of OpenAI's
API, over the output.
"""

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from svc_wire.frontend_link import Sampling
from svc_wire.ids import LOGPROBS_MAX
from tests.support.planner import Job, Planner
from tests.tiny_model import EOS


@torch.inference_mode()
def decode(model: Any, job: Job) -> tuple[list[int], list[Tensor]]:
    """The output tokens, and the log-probabilities [V] that the plain model gives at each."""
    output, told = list[int](), list[Tensor]()
    while len(output) < job.max_tokens:
        ids = torch.tensor([job.prompt + output], device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[:, -1].float()
        told.append(logits[0].log_softmax(-1).cpu())
        scores = penalise(logits.clone(), ids, output, job.sampling)
        if len(output) < job.min_tokens:
            scores[0, list(job.stop_ids)] = float("-inf")
        output.append(int(scores[0].argmax()))
        if output[-1] in job.stop_ids:
            break
    return output, told


def penalise(scores: Tensor, ids: Tensor, output: list[int], sampling: Sampling) -> Tensor:
    if sampling.repetition_penalty != 1:
        processor = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        scores = processor(ids, scores)
    for token in set(output):
        scores[0, token] -= sampling.frequency_penalty * output.count(token)
        scores[0, token] -= sampling.presence_penalty
    return scores


def draw_jobs(count: int, seed: int, *, prompt_max: int = 60, last_arrival: int = 40) -> list[Job]:
    """Some with penalties of each kind, in one batch with some that have none."""
    rng = random.Random(seed)
    return [
        Job(
            [rng.randrange(5, 40) for _ in range(rng.randint(1, prompt_max))],
            max_tokens=rng.randint(5, 40),
            sampling=Sampling(
                repetition_penalty=rng.choice([1.0, 1.0, 1.3, 0.8, 2.0]),
                presence_penalty=rng.choice([0.0, 0.0, 0.7, -1.5]),
                frequency_penalty=rng.choice([0.0, 0.0, 0.4, 2.0]),
            ),
            stop_ids=(EOS, rng.randrange(5, 261)),
            min_tokens=rng.choice([0, 4]),
            arrives_at_step=rng.randrange(last_arrival),
            logprobs=rng.choice([None, None, 0, 3, LOGPROBS_MAX]),
        )
        for _ in range(count)
    ]


def assert_as_decoded(plain: Any, planner: Planner, tolerance: float) -> None:
    """What a planner's run brought is what `decode` says: tokens, log-probabilities, and which are
    the most likely."""
    for sequence in planner.sequences:
        expected, told = decode(plain, sequence.job)
        assert sequence.output == expected
        if (asked := sequence.job.logprobs) is None:
            assert not sequence.logprobs
            continue
        pairs = zip(expected, told, sequence.logprobs, strict=True)
        for token, all_logprobs, (chosen, top) in pairs:
            assert chosen == pytest.approx(all_logprobs[token].item(), abs=tolerance)
            best = all_logprobs.topk(asked).values.tolist()
            assert [value for _, value in top] == pytest.approx(best, abs=tolerance)
            # By value, not by rank: two of the most likely may be closer than the tolerance.
            own = [all_logprobs[token_id].item() for token_id, _ in top]
            assert own == pytest.approx(best, abs=tolerance)
            assert len({token_id for token_id, _ in top}) == asked
