"""Small tokenizers of the kinds that models use, made in code."""

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

BOS, EOS = "<|bos|>", "<|eos|>"


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: every byte, some merges, added tokens special and not."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("Ġ", "w"), ("Ã", "©"), ("ð", "Ł"), ("ðŁ", "Ļ")]
    names = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(
        models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS])
    tokenizer.add_tokens([AddedToken("<tool call>", special=False), AddedToken("日本")])
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def byte_fallback(*, strip: bool = True) -> Tokenizer:
    """As Llama 2 and Gemma: words with ▁ for the space, bytes for whatever is no word."""
    names = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "a", "b", "▁a", "▁b", "é", "▁é", "日", "▁▁"]
    vocab = {name: index for index, name in enumerate([*names, *words])}
    merges = [("▁", "a"), ("▁", "b"), ("▁", "é"), ("▁", "▁")]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    tokenizer.add_special_tokens(["<unk>", BOS, EOS])
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT: a decoder whose tokens are not byte strings."""
    names = ["[UNK]", "[CLS]", "hello", "wor", "##ld", ",", "##s", "a"]
    tokenizer = Tokenizer(
        models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(["[UNK]", "[CLS]"])
    return tokenizer


def metaspace() -> Tokenizer:
    """As T5 and XGLM: ▁ for the space, no bytes."""
    words = ["<unk>", "▁hello", "▁world", "▁", "s", "日", "▁a"]
    tokenizer = Tokenizer(
        models.Unigram([(word, -1.0 - index) for index, word in enumerate(words)], unk_id=0)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def save(
    tokenizer: Tokenizer,
    folder: Path,
    config: Mapping[str, object] | None = None,
    chat_template: str | None = None,
) -> Path:
    """Writes a model folder; returns it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    return folder
