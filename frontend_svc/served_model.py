"""What is served: the model's facts as the scheduler passed them on, and its tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path

import msgspec

from frontend_svc.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer
from svc_wire.capacity import ModelInfo
from svc_wire.frontend_link import Attached

MODEL_MARK_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    info: ModelInfo
    vocab_size: int
    sequence_len_max: int
    """Most tokens of one sequence, prompt and output together."""
    tokenizer: Tokenizer

    @property
    def mark(self) -> bytes:
        return model_mark(self.info, self.vocab_size)


def model_mark(info: ModelInfo, vocab_size: int) -> bytes:
    """Tells models apart: what one began, another of the same mark goes on with, token by token."""
    facts = msgspec.msgpack.encode((info, vocab_size))
    return blake2b(facts, digest_size=MODEL_MARK_BYTES).digest()


def load_model(
    attached: Attached, tokenizer_folder: Path | None, now: Callable[[], datetime]
) -> ServedModel:
    """Reads the tokenizer; takes up to seconds. Raises TokenizerError."""
    info = attached.model
    tokenizer: Tokenizer
    if tokenizer_folder is not None or info.path:
        tokenizer = FileTokenizer(tokenizer_folder or Path(info.path), now)
    else:
        tokenizer = ByteTokenizer(info.eos_ids)
    return ServedModel(info, attached.vocab_size, attached.sequence_len_max, tokenizer)
