"""Text to token ids and back, from a model's own files; no transformers, no torch.

Everything here may take long (a big prompt takes a second): it is called in worker threads, never
on the event loop, except `detokenizer`, which is instant. All objects can be used from several
threads.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec
from tokenizers import Tokenizer as _Tokenizer

from frontend_svc.chat_template import ChatTemplate, ChatTemplateError
from frontend_svc.detokenizer import Detokenizer, PieceDetokenizer, WindowDetokenizer
from frontend_svc.pieces import DecoderSpec, piece_table


class TokenizerError(Exception):
    """The tokenizer of a model cannot be loaded. The text says which file and why."""


class Tokenizer(Protocol):
    @property
    def chat_template(self) -> ChatTemplate | None: ...

    @property
    def token_bytes_max(self) -> int:
        """Most bytes of text that one token can stand for."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Special tokens in the text are recognised; the beginning token is added if asked for."""

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer: ...

    def token_text(self, token_id: int) -> str:
        """Of one token by itself, special or not; U+FFFD stands for a part of a character."""


class ByteTokenizer:
    """Ids 0 to 255 are bytes; other ids have no text. For models without a tokenizer (the hash
    runner).
    """

    chat_template = None
    token_bytes_max = 1

    def __init__(self, special_ids: Sequence[int] = ()) -> None:
        self._pieces = _Bytes({byte: bytes([byte]) for byte in range(256)})
        self._special_ids = frozenset(special_ids)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        return PieceDetokenizer(
            self._pieces, self._special_ids if skip_special_tokens else frozenset()
        )

    def token_text(self, token_id: int) -> str:
        return self._pieces[token_id].decode(errors="replace")


class _Bytes(dict[int, bytes]):
    def __missing__(self, token_id: int) -> bytes:
        return b""


class FileTokenizer:
    """The tokenizer of a model folder: tokenizer.json, and what stands beside it."""

    def __init__(self, folder: Path, now: Callable[[], datetime]) -> None:
        """`now` is what the chat template's strftime_now reads. Raises TokenizerError."""
        self._tokenizer, decoder = _load(folder / "tokenizer.json")
        self._pieces = piece_table(self._tokenizer, decoder)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(
            token_id for token_id, token in added.items() if token.special
        )
        self.token_bytes_max = max(
            (len(token.encode()) for token in self._tokenizer.get_vocab()), default=1
        )
        config = _read(folder / "tokenizer_config.json", _TokenizerConfig) or _TokenizerConfig()
        special_tokens = config.special_tokens(folder)
        bos_token = special_tokens.get("bos_token")
        self._bos_id = None if bos_token is None else self._tokenizer.token_to_id(bos_token)
        self._adds_bos = config.add_bos_token is True
        self.chat_template = _chat_template(folder, config, special_tokens, now)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The batch call is the one that lets go of the interpreter lock.
        [encoding] = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        ids: list[int] = encoding.ids
        return self._with_one_bos(ids) if add_special_tokens else ids

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        if self._pieces is None:
            return WindowDetokenizer(
                lambda ids: self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
            )
        skipped = self._special_ids if skip_special_tokens else frozenset[int]()
        return PieceDetokenizer(self._pieces, skipped, self._pieces.leading_spaces)

    def token_text(self, token_id: int) -> str:
        if self._pieces is None:
            text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
            return text
        return self._pieces[token_id].decode(errors="replace")

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        """The text may bring its own beginning token; models were never shown two."""
        bos = self._bos_id
        if bos is None:
            return ids
        if ids[:2] == [bos, bos]:
            return ids[1:]
        return [bos, *ids] if self._adds_bos and ids[:1] != [bos] else ids


def _load(path: Path) -> tuple[_Tokenizer, DecoderSpec | None]:
    try:
        text = path.read_text(encoding="utf-8")
        decoder = msgspec.json.decode(text, type=_TokenizerFile).decoder
        tokenizer = _Tokenizer.from_str(text)
    # The tokenizers library raises bare Exception for a file that it cannot read.
    except Exception as error:
        raise TokenizerError(f"cannot read the tokenizer {path}: {error}") from error
    # A file may carry the truncation of its training; a prompt must not be cut in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, decoder


class _TokenizerFile(msgspec.Struct):
    decoder: DecoderSpec | None = None


class _AddedToken(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class _TokenizerConfig(msgspec.Struct):
    bos_token: str | _AddedToken | None = None
    eos_token: str | _AddedToken | None = None
    unk_token: str | _AddedToken | None = None
    sep_token: str | _AddedToken | None = None
    pad_token: str | _AddedToken | None = None
    cls_token: str | _AddedToken | None = None
    mask_token: str | _AddedToken | None = None
    add_bos_token: bool | None = None
    chat_template: str | list[_NamedTemplate] | None = None

    def special_tokens(self, folder: Path) -> dict[str, str]:
        """Text by name, from here and, where this is silent, from special_tokens_map.json."""
        older = _read(folder / "special_tokens_map.json", _TokenizerConfig)
        found: dict[str, str] = {}
        for name in _SPECIAL_TOKENS:
            token = getattr(self, name) or (older and getattr(older, name))
            if token:
                found[name] = token.content if isinstance(token, _AddedToken) else token
        return found

    def default_template(self) -> str | None:
        if isinstance(self.chat_template, list):
            return {named.name: named.template for named in self.chat_template}.get("default")
        return self.chat_template


def _read(path: Path, kind: type[_TokenizerConfig]) -> _TokenizerConfig | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise TokenizerError(f"cannot read {path}: {error}") from error


def _chat_template(
    folder: Path,
    config: _TokenizerConfig,
    special_tokens: Mapping[str, str],
    now: Callable[[], datetime],
) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    try:
        source = path.read_text(encoding="utf-8") if path.exists() else config.default_template()
        return None if source is None else ChatTemplate(source, special_tokens, now)
    except (OSError, UnicodeDecodeError, ChatTemplateError) as error:
        raise TokenizerError(f"cannot use the chat template of {folder}: {error}") from error
