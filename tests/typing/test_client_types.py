"""The client as a type checker sees it: what its users rely on, and what must not pass.

Each function is checked by mypy with the rest of the tree; an `assert_type` that is wrong or a
`type: ignore` that is not needed fails there. At run time only the names are looked up.
"""

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import pytest

import twostroke_client as ts


def sync_client(client: ts.Client) -> None:
    stream = client.generate("hi", temperature=0.0, stop=["x"], timeout_s=1.0)
    assert_type(stream, ts.Stream)
    pieces: Iterator[ts.Delta] = stream
    for piece in pieces:
        assert_type(piece.text, str)
        assert_type(piece.token_ids, tuple[int, ...])
        assert_type(piece.finish, ts.Finish | None)
    with client.generate([ts.Message("user", "hi")]) as entered:
        assert_type(entered, ts.Stream)
    assert_type(client.complete([1, 2, 3]), ts.Completion)
    assert_type(client.complete("hi").finish, ts.Finish)
    assert_type(client.model_info().eos_token_ids, tuple[int, ...])
    with ts.Client() as opened:
        assert_type(opened, ts.Client)


async def async_client(client: ts.AsyncClient) -> None:
    stream = client.generate("hi", max_tokens=3)
    assert_type(stream, ts.AsyncStream)
    pieces: AsyncIterator[ts.Delta] = stream
    async for piece in pieces:
        assert_type(piece, ts.Delta)
    assert_type(await client.complete("hi"), ts.Completion)
    async with client.generate("hi") as entered:
        assert_type(entered, ts.AsyncStream)


def mistakes(client: ts.Client) -> None:
    client.generate("hi", temperature="hot")  # type: ignore[arg-type]
    client.generate("hi", heat=1)  # type: ignore[call-arg]
    client.generate("hi", timeout_s="soon")  # type: ignore[arg-type]
    client.generate(["hi"])  # type: ignore[arg-type]
    client.generate()  # type: ignore[call-arg]
    for _ in client.complete("hi"):  # type: ignore[attr-defined]
        pass
    client.complete("hi").finish.reason = ts.FinishReason.STOP  # type: ignore[misc]


def errors(error: ts.TwostrokeError) -> None:
    match error:
        case ts.InvalidRequest():
            assert_type(error.field, str)
        case ts.Unavailable():
            assert_type(error.retry_after_s, float | None)


@pytest.mark.parametrize("name", ts.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(ts, name).__module__.startswith("twostroke_client") or name == "Prompt"
