"""What a scheduler that leaves as ordered tells its successor: a file in the runtime directory.

    digest   16 bytes, of all that follows
    Leaving  msgpack: version, in which state KV memory is, blocks [N] int32, keys [N] of 16 bytes

It is good for KV memory in exactly one state: after one step, of one epoch, of one executor. A
successor that finds any other, or no file, or one that is damaged, computes its sequences again;
so the file may be lost, old or foreign and can do no harm.
"""

import os
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import structlog

from scheduler_svc.core import KvIndex

FILE = "kv-index"
VERSION = 1
KEY_BYTES = DIGEST_BYTES = 16

log = structlog.get_logger(service="scheduler")


@dataclass(frozen=True, slots=True)
class KvState:
    """A moment of an executor's KV memory: after this step and before any other."""

    ring: str
    """The name of its frame ring, which no other executor ever has."""
    epoch: int
    step: int
    """(0, 0): nothing is known of it."""


class Leaving(msgspec.Struct, frozen=True, array_like=True):
    """The file's content."""

    version: int
    state: tuple[str, int, int]
    blocks: bytes
    keys: bytes


def leave(run_dir: Path, state: KvState, index: KvIndex) -> None:
    """Writes the file. Where it cannot be written, the successor has to do without."""
    if not len(index) or not state.epoch:
        return
    keys, blocks = b"".join(index.keys), index.blocks.astype("<i4").tobytes()
    body = msgspec.msgpack.encode(Leaving(VERSION, astuple(state), blocks, keys))
    path, unfinished = run_dir / FILE, run_dir / f"{FILE}.new"
    try:
        unfinished.write_bytes(_digest(body) + body)
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        log.warning("cannot hand the prefix cache over", error=error.strerror)


def take(run_dir: Path, state: KvState, num_blocks: int) -> KvIndex | None:
    """What the predecessor left, if KV memory is in that state; removes the file.

    `num_blocks` is the executor's.
    """
    path = run_dir / FILE
    try:
        data = path.read_bytes()
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("cannot read what was handed over", error=error.strerror)
        return None
    found = _read(data)
    if found is None or found.state != astuple(state):
        log.info("what was handed over is not of this executor's memory as it is")
        return None
    return _index(found, num_blocks)


def _read(data: bytes) -> Leaving | None:
    digest, body = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if digest != _digest(body):
        return None
    try:
        found = msgspec.msgpack.decode(body, type=Leaving)
    except msgspec.DecodeError:
        return None
    return found if found.version == VERSION else None


def _index(found: Leaving, num_blocks: int) -> KvIndex | None:
    count = len(found.blocks) // 4
    blocks = np.frombuffer(found.blocks, "<i4", count).astype(np.int32)
    keys = tuple(found.keys[at : at + KEY_BYTES] for at in range(0, count * KEY_BYTES, KEY_BYTES))
    in_range = bool(((blocks >= 0) & (blocks < num_blocks)).all())
    unique = len(set(keys)) == len(np.unique(blocks)) == count
    return KvIndex(blocks, keys) if in_range and unique else None


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES).digest()
