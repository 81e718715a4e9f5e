"""Whatever arrives on a socket, decoding it gives a message of that link or a MessageError."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_wire.codec import Codec, Message
from svc_wire.errors import MessageError
from tests.support.messages import LINKS

CODECS = [pytest.param(codec, id=link) for link, (codec, _) in LINKS.items()]
SAMPLES = [
    pytest.param(codec, message, id=f"{link}.{type(message).__name__}")
    for link, (codec, messages) in LINKS.items()
    for message in messages
]
KINDS = sorted({type(message).__name__ for _, messages in LINKS.values() for message in messages})

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9)
)
VALUES = SCALARS | st.lists(SCALARS, max_size=7) | st.dictionaries(st.text(max_size=9), SCALARS)


def must_be_message_or_refused(codec: Codec[Any], data: bytes) -> None:
    try:
        message = codec.decode(data)
    except MessageError:
        return
    assert isinstance(message, Message)
    assert codec.decode(codec.encode(message)) == message or "nan" in repr(message)


@pytest.mark.parametrize(("codec", "message"), SAMPLES)
def test_a_message_comes_back_as_it_was_sent(codec: Codec[Any], message: Message) -> None:
    data = codec.encode(message)
    assert codec.decode(data) == message
    assert codec.decode(memoryview(data)) == message


@pytest.mark.parametrize(("codec", "message"), SAMPLES)
def test_a_message_cut_anywhere_is_refused(codec: Codec[Any], message: Message) -> None:
    data = codec.encode(message)
    for stop in range(len(data)):
        with pytest.raises(MessageError):
            codec.decode(data[:stop])


@pytest.mark.parametrize(("codec", "message"), SAMPLES)
def test_a_changed_byte_is_another_message_or_refused(codec: Codec[Any], message: Message) -> None:
    data = bytearray(codec.encode(message))
    for offset in range(len(data)):
        for change in (0x01, 0x10, 0x80, 0xFF):
            data[offset] ^= change
            must_be_message_or_refused(codec, bytes(data))
            data[offset] ^= change


@pytest.mark.parametrize("codec", CODECS)
@given(st.binary(max_size=200))
def test_random_bytes(codec: Codec[Any], data: bytes) -> None:
    must_be_message_or_refused(codec, data)


@pytest.mark.parametrize("codec", CODECS)
@given(st.sampled_from(KINDS), st.lists(VALUES, max_size=13))
def test_known_kinds_with_random_fields(codec: Codec[Any], kind: str, values: list[Any]) -> None:
    must_be_message_or_refused(codec, msgspec.msgpack.encode([kind, *values]))


@pytest.mark.parametrize("codec", CODECS)
def test_bottomless_nesting_is_refused(codec: Codec[Any]) -> None:
    for data in (b"\x91" * 100_000, b"\x92\xa4Ping" + b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"):
        with pytest.raises(MessageError):
            codec.decode(data)
