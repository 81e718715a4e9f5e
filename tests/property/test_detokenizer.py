"""Whatever ids come: no exception, no partial character, and the pieces are the whole."""

import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from frontend_svc.detokenizer import Detokenizer, PieceDetokenizer, WindowDetokenizer
from frontend_svc.tokenizer import ByteTokenizer, FileTokenizer
from tests.support import tokenizers
from tests.support.frontend import NOON


@cache
def loaded(build: Callable[[], Tokenizer]) -> FileTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return FileTokenizer(tokenizers.save(build(), Path(folder)), lambda: NOON)


def llama() -> Tokenizer:
    return tokenizers.byte_fallback()


def gemma() -> Tokenizer:
    return tokenizers.byte_fallback(strip=False)


def pieces_of(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def some_ids(count: int) -> st.SearchStrategy[list[int]]:
    """Ids of a vocabulary, some beyond it, with runs of the bytes that make characters."""
    return st.lists(st.integers(0, count + 3), max_size=60)


@given(ids=some_ids(280), skip=st.booleans())
@example(ids=[], skip=True)
def test_byte_level_equals_decoding_at_once(ids: list[int], skip: bool) -> None:
    detokenizer = loaded(tokenizers.byte_level).detokenizer(skip_special_tokens=skip)
    assert isinstance(detokenizer, PieceDetokenizer)
    reference = tokenizers.byte_level().decode(ids, skip_special_tokens=skip)
    assert "".join(pieces_of(detokenizer, ids)) == reference


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@example(text="é🙂e\u0301 日本\u0000\ufffd")
def test_byte_level_never_sends_a_part_of_a_character(text: str) -> None:
    tokenizer = loaded(tokenizers.byte_level)
    ids = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True)
    sent = ""
    for token_id in ids:
        sent += detokenizer.push(token_id)
        assert text.startswith(sent)
    assert sent == text
    assert detokenizer.finish() == ""


# A piece at a time: words, and runs of byte tokens that are whole characters.
WORDS = st.sampled_from(
    [[index] for index in [1, 2, *range(259, 268)]]
    + [[3 + byte for byte in character.encode()] for character in "é日🙂 \n"]
)


@pytest.mark.parametrize("build", [llama, gemma])
@given(words=st.lists(WORDS, max_size=30), skip=st.booleans())
def test_byte_fallback_equals_decoding_at_once(
    build: Callable[[], Tokenizer], words: list[list[int]], skip: bool
) -> None:
    ids = [token_id for word in words for token_id in word]
    detokenizer = loaded(build).detokenizer(skip_special_tokens=skip)
    assert isinstance(detokenizer, PieceDetokenizer)
    assert "".join(pieces_of(detokenizer, ids)) == build().decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("build", [llama, gemma])
@given(ids=some_ids(270))
def test_byte_fallback_of_broken_bytes_is_the_bytes_read_as_utf8(
    build: Callable[[], Tokenizer], ids: list[int]
) -> None:
    tokens = [build().id_to_token(token_id) for token_id in ids]
    data = b"".join(
        bytes.fromhex(token[3:5]) if token.startswith("<0x") else token.replace("▁", " ").encode()
        for token in tokens
        if token is not None
    )
    expected = data.decode("utf-8", "replace")
    if build is llama:
        expected = expected.removeprefix(" ")
    pieces = pieces_of(loaded(build).detokenizer(skip_special_tokens=False), ids)
    assert "".join(pieces) == expected


@pytest.mark.parametrize("build", [tokenizers.word_piece, tokenizers.metaspace])
@given(ids=st.lists(st.integers(0, 9), max_size=60), skip=st.booleans())
def test_other_decoders_equal_decoding_at_once(
    build: Callable[[], Tokenizer], ids: list[int], skip: bool
) -> None:
    detokenizer = loaded(build).detokenizer(skip_special_tokens=skip)
    assert isinstance(detokenizer, WindowDetokenizer)
    assert "".join(pieces_of(detokenizer, ids)) == build().decode(ids, skip_special_tokens=skip)


@given(ids=some_ids(280), skip=st.booleans())
def test_a_window_holds_any_ids_without_an_exception(ids: list[int], skip: bool) -> None:
    """Also of a decoder that it is not meant for; broken bytes may come out otherwise."""
    tokenizer = tokenizers.byte_level()
    detokenizer = WindowDetokenizer(
        lambda window: tokenizer.decode(window, skip_special_tokens=skip)
    )
    pieces = pieces_of(detokenizer, ids)
    assert len(detokenizer._ids) <= 2 * WindowDetokenizer.WINDOW
    if "\ufffd" not in (whole := tokenizer.decode(ids, skip_special_tokens=skip)):
        assert "".join(pieces) == whole


@given(data=st.binary(max_size=80))
def test_the_byte_tokenizer_reads_utf8(data: bytes) -> None:
    detokenizer = ByteTokenizer().detokenizer(skip_special_tokens=False)
    assert "".join(pieces_of(detokenizer, list(data))) == data.decode("utf-8", "replace")
