"""Prompts become the same ids, and ids the same text, as in transformers."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from executor_svc.embedded import embedded_folder
from frontend_svc.tokenizer import FileTokenizer
from tests.tiny_model import tiny_tokenizer

pytestmark = pytest.mark.model

TEXTS = [
    "The capital of France is",
    " leading and trailing ",
    "héllo wörld, 日本語 🙂👩‍👩‍👧 e\u0301",
    "a\n\n\tb\r\n" + " " * 20 + "x" * 50,
    "in the text <|im_start|>user\nhi<|im_end|> and <|bos|> too",
    "\x00\x01\ufffd",
]
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "You answer in rhymes."},
        {"role": "user", "content": "What is <b>bold</b>?\n"},
        {"role": "assistant", "content": "  "},
        {"role": "user", "content": "日本 🙂"},
    ],
]


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "smollm2":
        return embedded_folder()
    path = tmp_path_factory.mktemp("tiny")
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def theirs(folder: Path) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return tokenizer


@pytest.fixture(scope="module")
def ours(folder: Path) -> FileTokenizer:
    return FileTokenizer(folder, lambda: datetime.now(UTC))  # noqa: TID251


@pytest.mark.parametrize("text", TEXTS)
def test_text(ours: FileTokenizer, theirs: PreTrainedTokenizerBase, text: str) -> None:
    ids = theirs(text).input_ids
    assert ours.encode(text, add_special_tokens=True) == ids
    for skip in (True, False):
        detokenizer = ours.detokenizer(skip_special_tokens=skip)
        pieces = [*map(detokenizer.push, ids), detokenizer.finish()]
        expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert "".join(pieces) == expected


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("add_prompt", [True, False])
def test_chat(
    ours: FileTokenizer,
    theirs: PreTrainedTokenizerBase,
    chat: list[dict[str, str]],
    add_prompt: bool,
) -> None:
    assert ours.chat_template is not None
    rendered = ours.chat_template.render(chat, add_generation_prompt=add_prompt)
    assert rendered == theirs.apply_chat_template(
        chat, add_generation_prompt=add_prompt, tokenize=False
    )
    expected = theirs.apply_chat_template(chat, add_generation_prompt=add_prompt, return_dict=False)
    assert ours.encode(rendered, add_special_tokens=False) == expected
