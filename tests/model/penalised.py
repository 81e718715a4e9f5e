"""Greedy decoding with penalties, one sequence at a time, nothing cached: what must come out.

Repetition penalties are transformers' own; the two that are subtracted are the formula of OpenAI's
API, over the output.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from svc_wire.frontend_link import Sampling
from tests.support.planner import Job


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
