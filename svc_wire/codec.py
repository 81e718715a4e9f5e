"""Encoding of the small messages on sockets: msgpack arrays with a kind, by msgspec."""

from typing import Any, Generic, TypeVar

import msgspec

from svc_wire.errors import MessageError

M = TypeVar("M")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all messages: immutable, encoded as [kind, field, field, ...]."""


class Codec(Generic[M]):
    """Encodes and decodes one direction of one link: a closed union of message types."""

    def __init__(self, union: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)

    def encode(self, message: M) -> bytes:
        return self._encoder.encode(message)

    def decode(self, data: bytes | memoryview) -> M:
        """Raises MessageError for anything that is not exactly one known, well-formed message."""
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MessageError(f"cannot decode a message of {len(data)} bytes: {error}") from error
