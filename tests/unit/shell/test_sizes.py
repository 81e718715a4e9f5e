"""Sizes as people write them."""

import pytest
import typer

from svc_shell.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000000", 10**6),
        ("512MiB", 512 << 20),
        ("2 GB", 2 * 10**9),
        ("1.5gib", 3 << 29),
        ("64k", 64000),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1TB", "12 blocks", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size"):
        parse_bytes(text)
