"""Incremental detokenisation: token ids in, whole characters out.

Rules of this file: the pieces of a sequence, put together, are the text that decoding it at once
would give; a piece never ends inside a code point; no sequence of ids raises; the cost of a token
does not depend on how many came before it.

Nearly every language model's tokenizer is, on the way back, a table from id to bytes: the text is
the concatenation, read as UTF-8. `PieceDetokenizer` does just that. `WindowDetokenizer` serves the
rest: it decodes the last few ids anew and sends what became longer.
"""

from codecs import utf_8_decode
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol

REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Turns one sequence of ids into text. Used by one stream, then thrown away."""

    def push(self, token_id: int) -> str:
        """The characters that this token completes; often one word, sometimes none."""

    def finish(self) -> str:
        """What is left when no more tokens come: a cut code point becomes U+FFFD."""


class PieceDetokenizer:
    """For tokenizers whose tokens are byte strings.

    A byte sequence that is not UTF-8 gives one U+FFFD per maximal invalid part, as the WHATWG's
    decoder and byte-level tokenizers do. (Tokenizers with byte fallback give one U+FFFD per byte of
    the whole run, valid parts included, and so must read to the run's end first. We do not wait for
    it.)
    """

    __slots__ = ("_leading_spaces", "_pieces", "_rest", "_skipped")

    def __init__(
        self, pieces: Mapping[int, bytes], skipped: Set[int] = frozenset(), leading_spaces: int = 0
    ) -> None:
        """`pieces` has every id, unknown ones too; `leading_spaces` are removed from the start."""
        self._pieces = pieces
        self._skipped = skipped
        self._leading_spaces = leading_spaces
        self._rest = b""  # the beginning of a code point, at most 3 bytes

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        data = self._rest + self._pieces[token_id]
        text, used = utf_8_decode(data, "replace", False)
        self._rest = data[used:]
        return self._without_leading_spaces(text) if self._leading_spaces else text

    def finish(self) -> str:
        text, _ = utf_8_decode(self._rest, "replace", True)
        self._rest = b""
        return text

    def _without_leading_spaces(self, text: str) -> str:
        stripped = text.lstrip(" ")
        removed = min(len(text) - len(stripped), self._leading_spaces)
        self._leading_spaces = 0 if stripped else self._leading_spaces - removed
        return text[removed:]


class WindowDetokenizer:
    """For every other tokenizer: decodes a short window of ids and sends what is new.

    A window that ends in U+FFFD may be a character that is not complete, so it waits, for at most
    WINDOW ids. Decoders that look back further than that are not known.
    """

    WINDOW = 16

    __slots__ = ("_decode", "_ids", "_sent", "_sent_text")

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._sent = 0  # of these ids, so many have been sent; they stay as context for the rest
        self._sent_text = ""

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if text.endswith(REPLACEMENT) and len(self._ids) - self._sent < self.WINDOW:
            return ""
        return self._advance(text)

    def finish(self) -> str:
        return self._advance(self._decode(self._ids))

    def _advance(self, text: str) -> str:
        new = text[len(self._sent_text) :]
        if new:
            del self._ids[: self._sent]
            self._sent_text = self._decode(self._ids)
            self._sent = len(self._ids)
        elif self._sent_text or len(self._ids) > self.WINDOW:
            # Ids without text (special ones) must not push the context out, nor pile up. At the
            # start they are context: a decoder may treat the first id differently.
            del self._ids[self._sent :]
        else:
            self._sent = len(self._ids)
        return new
