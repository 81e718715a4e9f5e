"""Plain greedy decoding by transformers, one sequence at a time: what the executor must equal."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache


@torch.inference_mode()
def greedy(
    model: Any, prompt: Sequence[int], max_tokens: int, stop_ids: Sequence[int] = ()
) -> list[int]:
    """Uses transformers' own cache; not `generate`, which changes logits to end where it must."""
    # One version calls it past_key_values, the next one cache.
    parameters = inspect.signature(model.forward).parameters
    keyword = "cache" if "cache" in parameters else "past_key_values"
    cache, output = DynamicCache(config=model.config), list[int]()
    ids = torch.tensor([list(prompt)], device=model.device)
    while len(output) < max_tokens:
        logits = model(input_ids=ids, use_cache=True, **{keyword: cache}).logits
        output.append(int(logits[0, -1].argmax()))
        if output[-1] in stop_ids:
            break
        ids = torch.tensor([output[-1:]], device=model.device)
    return output
