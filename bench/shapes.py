"""Model shapes that the benches run with random weights."""

from typing import Any

from transformers import LlamaConfig

_LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA_1B = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
_TINY = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "tie_word_embeddings": False, "vocab_size": 4096,
}  # fmt: skip

SHAPES = {"llama-8b": _LLAMA_8B, "llama-1b": _LLAMA_1B, "tiny": _TINY}


def config_of(shape: str) -> Any:
    """The transformers configuration of a shape: Llama-3.1-8B, Llama-3.2-1B, or a tiny one."""
    common = {
        "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    return LlamaConfig(**{**common, **SHAPES[shape]})
