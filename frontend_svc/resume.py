"""Resuming: what a client needs besides its own request to go on with an answer whose stream broke.

    token   version u8 | seed i64 | model 8 bytes | stream 16 bytes      as base64, 44 characters

The client keeps the rest of the journal: its request and the token ids that it got. So an answer
can be gone on with by a server that remembers nothing, and everything may die at once. The token
adds what the client cannot know (the seed that was drawn for it), what must not have changed (the
model), and the stream's name, under which a scheduler that still works on the request hands it
over. The name is drawn at random and long: it is all that keeps others from taking over a stream.
"""

import binascii
import secrets
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

from frontend_svc import errors
from frontend_svc.errors import Violation
from frontend_svc.served_model import MODEL_MARK_BYTES, ServedModel
from svc_wire.frontend_link import STREAM_BYTES

RESUME_HEADER = "x-resume-token"

_VERSION = 1
_LAYOUT = struct.Struct(f"<Bq{MODEL_MARK_BYTES}s{STREAM_BYTES}s")


@dataclass(frozen=True, slots=True)
class ResumeToken:
    seed: int
    """Of the answer, where the request has none."""
    model_mark: bytes
    stream: bytes

    @classmethod
    def draw(cls, model: ServedModel) -> "ResumeToken":
        """For an answer that begins."""
        return cls(secrets.randbits(63), model.mark, secrets.token_bytes(STREAM_BYTES))

    def text(self) -> str:
        data = _LAYOUT.pack(_VERSION, self.seed, self.model_mark, self.stream)
        return urlsafe_b64encode(data).decode()

    @classmethod
    def parse(cls, text: str, model: ServedModel) -> "ResumeToken":
        """Raises Failure for what is no token, or one of an answer of another model."""
        try:
            version, *fields = _LAYOUT.unpack(urlsafe_b64decode(text))
        except (ValueError, binascii.Error, struct.error):
            version = 0
        if version != _VERSION:
            raise errors.invalid([Violation("resume.token", "is not one that this server gave")])
        token = cls(*fields)
        if token.model_mark != model.mark:
            raise errors.cannot_resume("another model is served now than the one that began it")
        return token
