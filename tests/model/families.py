"""Tiny random models of many families; windows of 8 tokens where a family has one."""

from collections.abc import Callable
from typing import Any

import transformers as t

VOCAB = 128
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MLA: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_ALTERNATING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}


def _made(config: type, **extra: Any) -> Callable[[], Any]:
    return lambda: config(**(_COMMON | extra))


SUPPORTED: dict[str, Callable[[], Any]] = {
    "llama": _made(t.LlamaConfig),
    "mistral_window": _made(t.MistralConfig, sliding_window=8),
    "qwen2": _made(t.Qwen2Config),
    "qwen3": _made(t.Qwen3Config),
    "gemma2_softcap_window": _made(t.Gemma2Config, query_pre_attn_scalar=16, **_ALTERNATING),
    "gemma3_window": _made(t.Gemma3TextConfig, query_pre_attn_scalar=16, **_ALTERNATING),
    "gpt_oss_sinks_window": _made(
        t.GptOssConfig, num_local_experts=4, num_experts_per_tok=2, **_ALTERNATING
    ),
    "deepseek_v2_dv": _made(t.DeepseekV2Config, **_MLA),
    "deepseek_v3_dv": _made(t.DeepseekV3Config, **_MLA),
    "mixtral": _made(t.MixtralConfig, num_local_experts=4, num_experts_per_tok=2),
    "phi3": _made(t.Phi3Config),
    "gpt2": lambda: t.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=512),
}

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "bloom": (
        lambda: t.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4),
        "cannot be replaced|does not take",
    ),
    "mpt": (
        lambda: t.MptConfig(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4),
        "cannot be replaced|does not take",
    ),
    "mamba": (
        lambda: t.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2),
        "cannot be replaced|use the attention function",
    ),
    "llama4_chunked": (
        _made(
            t.Llama4TextConfig,
            intermediate_size_mlp=48,
            num_local_experts=2,
            attention_chunk_size=8,
            layer_types=["chunked_attention", "full_attention"],
        ),
        "layers of type chunked_attention",
    ),
    "diffllama": (_made(t.DiffLlamaConfig), "attends more than once|differ"),
    "bert": (
        lambda: t.BertConfig(
            vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=48, is_decoder=False,
        ),
        "differ|no causal",
    ),
}  # fmt: skip
