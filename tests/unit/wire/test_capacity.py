"""Sizes are refused where they cannot be right, before anything is laid out by them."""

import msgspec
import pytest

from svc_wire.capacity import Capacity
from svc_wire.errors import MessageError
from svc_wire.executor_link import to_scheduler
from svc_wire.ring import ring_bytes
from tests.support.messages import MODEL
from tests.support.plans import SMALL


def changed(**sizes: int) -> Capacity:
    return msgspec.structs.replace(SMALL, **sizes)


def test_derived_sizes_round_up() -> None:
    capacity = changed(model_len_max=17, block_size=4, rows_max=3, num_blocks=100)
    assert (capacity.blocks_per_row_max, capacity.table_max) == (5, 15)


@pytest.mark.parametrize(("num_blocks", "expected"), [(3, 12), (5, 20), (6, 21), (100, 21)])
def test_a_sequence_is_bounded_by_the_model_and_by_the_pool(num_blocks: int, expected: int) -> None:
    assert changed(num_blocks=num_blocks).sequence_len_max == expected


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({name: -1 if name in ("host_blocks", "block_copy_ns") else 0}, name)
        for name in Capacity.__struct_fields__
    ]
    + [
        ({"rows_max": 6}, "rows_max must not exceed lanes"),
        ({"tokens_max": 3}, "rows_max must not exceed tokens_max"),
        ({"num_blocks": 2**29}, "num_blocks \\* block_size"),
        ({"model_len_max": 2**31 - 4}, "model_len_max \\+ block_size"),
        ({"vocab_size": 2**31}, "vocab_size"),
        ({"model_len_max": 2**28}, "rows_max \\* blocks_per_row_max"),
        ({"tokens_max": 2**24}, "tokens_max"),
        ({"lanes": 2**20}, "lanes"),
        ({"host_blocks": 2**24}, "host_blocks"),
    ],
)  # fmt: skip
def test_a_size_out_of_bounds_is_named(sizes: dict[str, int], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        changed(**sizes)


def test_the_largest_capacity_can_be_laid_out() -> None:
    largest = Capacity(
        num_blocks=2**27 - 1, block_size=16, rows_max=2**12, tokens_max=2**24 - 1, lanes=2**20 - 1,
        model_len_max=2**20 - 16, vocab_size=2**31 - 1, host_blocks=2**24 - 1,
    )  # fmt: skip
    assert ring_bytes(largest) > 2**30


def test_a_capacity_out_of_bounds_in_a_message_is_a_message_error() -> None:
    sizes = dict.fromkeys(Capacity.__struct_fields__, 1) | {"lanes": 2**40}
    welcome = ["Welcome", 1, 2, "/ring", sizes, msgspec.structs.asdict(MODEL)]
    with pytest.raises(MessageError, match="lanes"):
        to_scheduler.decode(msgspec.msgpack.encode(welcome))
