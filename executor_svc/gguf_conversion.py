"""Converts a GGUF file of a llama-like model into a folder as transformers wants it.

transformers can read GGUF itself, but takes ten times as long, and in some versions takes the
beginning token for the end token. Here the ids come from the file's own metadata.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

Matrix = npt.NDArray[np.float32]

_CONTROL_TOKEN = 3
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def convert(source: Path, folder: Path) -> None:
    """Writes config, weights (bfloat16 safetensors), tokenizer and chat template into `folder`."""
    reader = GGUFReader(source)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(metadata)
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(folder)
    save_file(dict(_weights(reader, config)), folder / "model.safetensors", {"format": "pt"})
    _tokenizer(metadata, config).save_pretrained(folder)


def _config(metadata: dict[str, Any]) -> Any:
    assert metadata["general.architecture"] == "llama"
    heads = metadata["llama.attention.head_count"]
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
        head_dim=metadata["llama.embedding_length"] // heads,
        max_position_embeddings=metadata["llama.context_length"],
        # The file has single precision; the model was made with the decimal number.
        rms_norm_eps=float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": metadata["llama.rope.freq_base"],
        },
        tie_word_embeddings=True,
        bos_token_id=metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=metadata["tokenizer.ggml.eos_token_id"],
        pad_token_id=metadata["tokenizer.ggml.padding_token_id"],
    )


def _weights(reader: GGUFReader, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        kind = tensor.name.removesuffix(".weight")
        prefix = ""
        if kind.startswith("blk."):
            _, layer, kind = kind.split(".")
            prefix = f"model.layers.{layer}."
        values = dequantize(tensor.data, tensor.tensor_type)
        if kind in heads:
            values = _unpermute(values, heads[kind])
        name = f"{prefix}{_NAMES[kind]}.weight"
        yield name, torch.tensor(values).to(torch.bfloat16)


def _unpermute(values: Matrix, heads: int) -> Matrix:
    """From GGUF's order of a head's rows (rotary pairs side by side) to halves after another."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(metadata: dict[str, Any], config: Any) -> Any:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    inner.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=tokens[config.bos_token_id],
        eos_token=tokens[config.eos_token_id],
        pad_token=tokens[config.pad_token_id],
        unk_token=tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        model_max_length=config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = metadata["tokenizer.chat_template"]
    return tokenizer
