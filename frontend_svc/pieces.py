"""Which bytes a token stands for, read off the decoder of a tokenizer.json.

    ByteLevel                                  "Ġthe" -> b" the"    (GPT-2's alphabet)
    Replace("▁", " ") ByteFallback Fuse Strip  "▁the" -> b" the"    (sentencepiece)
                                               "<0xE4>" -> b"\\xe4"

Whatever is not exactly one of these is left to the tokenizers library.
"""

from collections.abc import Callable

import msgspec
from tokenizers import Tokenizer


class DecoderSpec(msgspec.Struct, rename={"kind": "type"}):
    """The part of a tokenizer.json's "decoder" that matters here."""

    kind: str
    decoders: "list[DecoderSpec]" = []
    pattern: dict[str, str] = {}
    content: str = ""
    start: int = 0
    stop: int = 0


class PieceTable(dict[int, bytes]):
    """Bytes by token id, looked up when an id is first seen. Ids without a token have no bytes."""

    def __init__(
        self,
        token: Callable[[int], str | None],
        to_bytes: Callable[[str], bytes],
        leading_spaces: int,
    ) -> None:
        super().__init__()
        self._token = token
        self._to_bytes = to_bytes
        self.leading_spaces = leading_spaces
        """Spaces that the decoder removes from the start of the text."""

    def __missing__(self, token_id: int) -> bytes:
        token = self._token(token_id)
        piece = b"" if token is None else self._to_bytes(token)
        self[token_id] = piece
        return piece


def piece_table(tokenizer: Tokenizer, decoder: DecoderSpec | None) -> PieceTable | None:
    """None if the decoder is not of a kind whose tokens are byte strings."""
    steps = _flat(decoder) if decoder is not None else []
    match [step.kind for step in steps]:
        case ["ByteLevel"]:
            return PieceTable(tokenizer.id_to_token, _byte_level_bytes, 0)
        case ["Replace", "ByteFallback", "Fuse", *rest] if (
            steps[0].pattern == {"String": "▁"} and steps[0].content == " "
        ):
            if not rest:
                return PieceTable(tokenizer.id_to_token, _fallback_bytes, 0)
            strip = steps[3]
            if rest == ["Strip"] and strip.content == " " and strip.stop == 0:
                return PieceTable(tokenizer.id_to_token, _fallback_bytes, strip.start)
    return None


def _flat(decoder: DecoderSpec) -> list[DecoderSpec]:
    return decoder.decoders if decoder.kind == "Sequence" else [decoder]


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's bijection: printable bytes stand for themselves, the others for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()
_FALLBACK = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


def _byte_level_bytes(token: str) -> bytes:
    """A token with a character outside the alphabet (an added one) stands for its own text."""
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode()


def _fallback_bytes(token: str) -> bytes:
    return _FALLBACK.get(token) or token.replace("▁", " ").encode()
