"""The file that a scheduler leaves to its successor: believed only where it cannot be wrong."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from scheduler_svc import handover
from scheduler_svc.core import KvIndex
from scheduler_svc.handover import KvState, Leaving

STATE = KvState("ring-1-ab", 7, 9)
INDEX = KvIndex(np.array([3, 0, 2], np.int32), (b"a" * 16, b"b" * 16, b"c" * 16))
BLOCKS = 4


def took(run_dir: Path, state: KvState = STATE, num_blocks: int = BLOCKS) -> list[int] | None:
    found = handover.take(run_dir, state, num_blocks)
    if found is not None:
        assert found.keys == INDEX.keys
    assert list(run_dir.iterdir()) == [], "it may be used once only"
    return None if found is None else found.blocks.tolist()


def test_what_is_left_is_taken_once(tmp_path: Path) -> None:
    handover.leave(tmp_path, STATE, INDEX)
    assert took(tmp_path) == [3, 0, 2]
    assert took(tmp_path) is None


@pytest.mark.parametrize(
    "state",
    [
        KvState("ring-1-cd", 7, 9),  # another executor
        KvState("ring-1-ab", 8, 9),  # there was another scheduler meanwhile
        KvState("ring-1-ab", 7, 10),  # there was another step
        KvState("ring-1-ab", 0, 0),  # a step failed
    ],
)
def test_another_state_of_memory_is_not_gone_on_from(tmp_path: Path, state: KvState) -> None:
    handover.leave(tmp_path, STATE, INDEX)
    assert took(tmp_path, state) is None


def test_nothing_is_left_of_what_nobody_knows(tmp_path: Path) -> None:
    handover.leave(tmp_path, KvState("ring-1-ab", 0, 0), INDEX)
    handover.leave(tmp_path, STATE, KvIndex(np.empty(0, np.int32), ()))
    assert list(tmp_path.iterdir()) == []


def test_every_damage_is_seen(tmp_path: Path) -> None:
    handover.leave(tmp_path, STATE, INDEX)
    path = tmp_path / handover.FILE
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert took(tmp_path) is None
        path.write_bytes(whole[:at])
        assert took(tmp_path) is None


def write(run_dir: Path, body: bytes) -> None:
    (run_dir / handover.FILE).write_bytes(handover._digest(body) + body)


@pytest.mark.parametrize(
    "content",
    [
        Leaving(handover.VERSION + 1, ("ring-1-ab", 7, 9), b"\0" * 4, b"k" * 16),
        Leaving(handover.VERSION, ("ring-1-ab", 7, 9), b"\0" * 8, b"k" * 16),
        Leaving(handover.VERSION, ("ring-1-ab", 7, 9), b"\0" * 8, b"k" * 16 + b"l" * 16),
        Leaving(handover.VERSION, ("ring-1-ab", 7, 9), b"\x04\0\0\0", b"k" * 16),
        ["something", "else"],
    ],
    ids=["version", "a key is missing", "a block twice", "no such block", "no such content"],
)
def test_content_that_cannot_be(tmp_path: Path, content: object) -> None:
    write(tmp_path, msgspec.msgpack.encode(content))
    assert took(tmp_path) is None


def test_a_place_where_nothing_can_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / handover.FILE).mkdir()
    (tmp_path / handover.FILE / "x").touch()
    handover.leave(tmp_path, STATE, INDEX)
    assert handover.take(tmp_path, STATE, BLOCKS) is None
    assert [path.name for path in tmp_path.iterdir()] == [handover.FILE]
