"""A tiny causal LM made in code: byte-level tokenizer, random Llama, half a megabyte.

The weights are large enough that greedy choices are far from ties, so that rounding differences
between two ways to compute the same thing do not change a token.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BOS, EOS, USER, ASSISTANT = range(5)
_SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>")
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, five special tokens, lossless on any text."""
    names = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=_SPECIAL[PAD],
        bos_token=_SPECIAL[BOS],
        eos_token=_SPECIAL[EOS],
        additional_special_tokens=list(_SPECIAL[USER:]),
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def tiny_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(_SPECIAL) + 256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )


def spread_weights(model: Any, seed: int = 0) -> None:
    """Fills all matrices so that activations stay near 1 and logits spread widely."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            scale = 0.5 if "lm_head" in name else 3.0 * parameter.shape[-1] ** -0.5
            parameter.data.normal_(0.0, scale, generator=generator)


def save_tiny_model(folder: Path) -> Path:
    """Writes model and tokenizer into `folder`, as `from_pretrained` wants them."""
    model = LlamaForCausalLM(tiny_config()).eval()
    spread_weights(model)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
