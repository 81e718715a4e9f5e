"""transformers' scheduler in the same decode steps, without a model. For bench.scheduler only.

It has no interface for that, so this reaches inside; where it no longer fits, it says so.
"""

import importlib.util
import logging
from collections.abc import Callable
from typing import Any

PROMPT_TOKENS, BLOCK_SIZE, BLOCKS_A_ROW = 100, 16, 64


Step = tuple[Callable[[], object], Callable[[], object], Callable[[], object]]
"""Commits the oldest step in flight; plans another one; does what can wait until that is out."""


class Unavailable(Exception):
    """This scheduler cannot be measured here. The text says why."""


def transformers(rows: int, waiting: int) -> Step:
    """transformers' continuous batching: take a batch's tokens in, then prepare the next one.

    Synchronous, and with the block tables that it uses on CUDA with FlashAttention; its other way,
    the only one that it takes by itself on a CPU, is far slower.
    """
    if importlib.util.find_spec("transformers") is None:
        raise Unavailable("not installed")
    processor, request = _transformers_processor(rows)
    for number in range(rows + waiting):
        tokens = [(number * 31 + k * 7) % 256 for k in range(PROMPT_TOKENS)]
        processor.scheduler.add_waiting_request(
            request(request_id=f"r{number}", initial_tokens=tokens, max_new_tokens=900)
        )
    io = processor.inputs_and_outputs

    def commit() -> None:
        io.output_ids[0, : io.num_request_in_batch] = 7
        processor.update_batch()

    processor.prepare_next_batch()
    return commit, processor.prepare_next_batch, lambda: None


def _transformers_processor(rows: int) -> tuple[Any, Any]:
    import torch
    from transformers import (
        ContinuousBatchingConfig,
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )
    from transformers.generation.continuous_batching.requests import RequestState

    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, vocab_size=256, max_position_embeddings=1024,
        )
    )  # fmt: skip
    model.config._attn_implementation = "flash_attention_2"  # so that it builds no dense mask
    options: dict[str, Any] = {
        "num_blocks": rows * BLOCKS_A_ROW, "max_batch_tokens": max(2048, rows),
        "max_requests_per_batch": rows, "max_blocks_per_request": BLOCKS_A_ROW,
        "use_cuda_graph": False, "use_async_batching": False,
    }  # fmt: skip
    try:
        manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(page_size=BLOCK_SIZE, **options),
        )
        manager.continuous_batching_config.max_blocks_per_request = BLOCKS_A_ROW
        return manager._create_batch_processor(), RequestState
    except (AttributeError, TypeError) as error:
        raise Unavailable(f"its inside has changed: {error}") from error
