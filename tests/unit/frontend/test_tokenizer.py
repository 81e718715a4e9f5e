"""Tokenizers from model folders: what goes in, what is refused, what the files say."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from frontend_svc.detokenizer import PieceDetokenizer, WindowDetokenizer
from frontend_svc.tokenizer import ByteTokenizer, FileTokenizer, TokenizerError
from tests.support import tokenizers
from tests.support.frontend import NOON
from tests.support.tokenizers import BOS, EOS, save


def load(folder: Path) -> FileTokenizer:
    return FileTokenizer(folder, lambda: NOON)


def decoded(tokenizer: FileTokenizer, ids: Sequence[int], *, skip: bool = True) -> str:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    return "".join(map(detokenizer.push, ids)) + detokenizer.finish()


def test_text_goes_there_and_back(tmp_path: Path) -> None:
    tokenizer = load(save(tokenizers.byte_level(), tmp_path))
    text = "hello wörld 日本 🙂\n\x00"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == tokenizers.byte_level().encode(text, add_special_tokens=False).ids
    assert decoded(tokenizer, ids) == text


def test_the_beginning_token_is_added_once(tmp_path: Path) -> None:
    inner = tokenizers.byte_level()
    [bos] = inner.encode(BOS, add_special_tokens=False).ids
    tokenizer = load(save(inner, tmp_path, {"bos_token": BOS}))
    assert tokenizer.encode("he", add_special_tokens=False)[0] != bos
    for text in ("he", f"{BOS}he"):
        assert tokenizer.encode(text, add_special_tokens=True).count(bos) == 1
    # What the caller writes twice behind that is the caller's business.
    assert tokenizer.encode(f"a{BOS}{BOS}", add_special_tokens=True).count(bos) == 3


@pytest.mark.parametrize(
    ("config", "begins"),
    [
        ({"bos_token": {"content": BOS}, "add_bos_token": True}, True),
        ({"bos_token": BOS, "add_bos_token": False}, False),
        ({"bos_token": BOS}, False),
        ({}, False),
    ],
)
def test_add_bos_token_counts_where_the_tokenizer_is_silent(
    tmp_path: Path, config: dict[str, object], begins: bool
) -> None:
    inner = tokenizers.byte_fallback()
    tokenizer = load(save(inner, tmp_path, config))
    assert (tokenizer.encode("a", add_special_tokens=True)[0] == inner.token_to_id(BOS)) is begins
    assert tokenizer.encode("a", add_special_tokens=False)[0] != inner.token_to_id(BOS)


def test_truncation_and_padding_of_the_file_are_not_ours(tmp_path: Path) -> None:
    inner = tokenizers.byte_level()
    inner.enable_truncation(4)
    inner.enable_padding(length=64)
    tokenizer = load(save(inner, tmp_path))
    assert len(tokenizer.encode("x" * 20, add_special_tokens=False)) == 20
    assert len(tokenizer.encode("x", add_special_tokens=False)) == 1


def test_special_tokens_are_left_out_or_kept(tmp_path: Path) -> None:
    inner = tokenizers.byte_level()
    tokenizer = load(save(inner, tmp_path))
    ids = inner.encode(f"a{EOS}<tool call>b", add_special_tokens=False).ids
    assert decoded(tokenizer, ids) == "a<tool call>b"
    assert decoded(tokenizer, ids, skip=False) == f"a{EOS}<tool call>b"


def test_ids_without_a_token_have_no_text(tmp_path: Path) -> None:
    tokenizer = load(save(tokenizers.byte_level(), tmp_path))
    assert decoded(tokenizer, [100_000, 2**31 - 1]) == ""


@pytest.mark.parametrize(
    ("inner", "kind"),
    [
        (tokenizers.byte_level(), PieceDetokenizer),
        (tokenizers.byte_fallback(), PieceDetokenizer),
        (tokenizers.byte_fallback(strip=False), PieceDetokenizer),
        (tokenizers.word_piece(), WindowDetokenizer),
        (tokenizers.metaspace(), WindowDetokenizer),
    ],
)
def test_the_quick_way_is_taken_where_tokens_are_bytes(
    tmp_path: Path, inner: Tokenizer, kind: type
) -> None:
    tokenizer = load(save(inner, tmp_path))
    assert isinstance(tokenizer.detokenizer(skip_special_tokens=True), kind)


def test_no_token_has_more_bytes_than_said(tmp_path: Path) -> None:
    tokenizer = load(save(tokenizers.byte_level(), tmp_path))
    assert tokenizer.token_bytes_max == len("<tool call>")
    assert ByteTokenizer().token_bytes_max == 1


@pytest.mark.parametrize("text", [None, "", "{", '{"model": {"type": "none"}}', "\x00"])
def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match=r"cannot read the tokenizer .*tokenizer\.json"):
        load(tmp_path)


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    save(tokenizers.byte_level(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": 7}')
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        load(tmp_path)


def test_the_chat_template_is_found_where_models_keep_it(tmp_path: Path) -> None:
    inner = tokenizers.byte_level()

    def rendered() -> str | None:
        template = load(tmp_path).chat_template
        return None if template is None else template.render([], add_generation_prompt=False)

    save(inner, tmp_path)
    assert rendered() is None
    save(inner, tmp_path, {"chat_template": "one {{ bos_token }}", "bos_token": BOS})
    assert rendered() == f"one {BOS}"
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "two"}]
    save(inner, tmp_path, {"chat_template": templates})
    assert rendered() == "two"
    save(inner, tmp_path, {"chat_template": [templates[0]]})
    assert rendered() is None
    save(inner, tmp_path, {"chat_template": "no"}, "three {{ eos_token }}")
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "<e>"}}')
    assert rendered() == "three <e>"


def test_a_broken_chat_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"cannot use the chat template of .*endfor"):
        load(save(tokenizers.byte_level(), tmp_path, chat_template="{% endfor %}"))


@pytest.mark.parametrize(
    "inner", [tokenizers.byte_level(), tokenizers.byte_fallback(), tokenizers.word_piece()]
)
def test_a_token_has_a_text_of_its_own(tmp_path: Path, inner: Tokenizer) -> None:
    """Special ones, too: an alternative that nobody chose is shown by what it is."""
    tokenizer = load(tokenizers.save(inner, tmp_path))
    ids = tokenizer.encode("a hello", add_special_tokens=False)
    texts = [tokenizer.token_text(token_id) for token_id in ids]
    assert "".join(texts).replace(" ", "") == "ahello"
    special = inner.token_to_id(tokenizers.BOS)
    assert special is None or tokenizer.token_text(special) == tokenizers.BOS


def test_a_byte_is_a_text_or_a_part_of_one() -> None:
    tokenizer = ByteTokenizer((256,))
    assert [tokenizer.token_text(token_id) for token_id in (97, 0xC3, 256)] == ["a", "\ufffd", ""]
