"""The table of live requests: each gets what is its own."""

import asyncio
import struct
from collections.abc import Sequence

from frontend_svc import errors
from frontend_svc.streams import LiveRequests
from svc_wire.frontend_link import Outputs, Rejected
from svc_wire.ids import FinishReason, RejectReason
from tests.support.fake_scheduler import finished
from tests.support.frontend import in_loop
from tests.support.live import failure_of, live_request


def outputs(tokens: Sequence[tuple[int, int, int]], *ends: int) -> Outputs:
    """Tokens as (key, index, token), and keys that end after one token."""
    keys, indices, ids = zip(*tokens, strict=True) if tokens else ((), (), ())
    return Outputs(
        struct.pack(f"<{len(keys)}Q", *keys),
        struct.pack(f"<{len(keys)}i", *indices),
        struct.pack(f"<{len(keys)}i", *ids),
        tuple(finished(key, FinishReason.LENGTH, output_tokens=1) for key in ends),
    )


@in_loop
async def test_outputs_reach_their_requests() -> None:
    table = LiveRequests()
    big = 2**64 - 1
    lives = {key: live_request(key=key)[0] for key in (1, 2, big)}
    for live in lives.values():
        table.add(live)
    table.outputs(outputs([(1, 0, 97), (big, 0, 98), (99, 0, 7), (2, 0, 99), (2, 1, 100)], 1, 99))
    assert [(await live.take()).text for live in lives.values()] == ["a", "cd", "b"]
    assert [live.is_over for live in lives.values()] == [True, False, False]


@in_loop
async def test_rejections_and_losses_reach_their_requests() -> None:
    table = LiveRequests()
    (one, _), (two, two_aborts), (three, three_aborts) = (live_request(key=k) for k in (1, 2, 3))
    for live in (one, two, three):
        table.add(live)
    table.rejected(Rejected(1, RejectReason.QUEUE_FULL, "full"))
    table.rejected(Rejected(99, RejectReason.QUEUE_FULL, "late"))
    assert (await failure_of(one)).reason == "QUEUE_FULL"
    table.fail_all(errors.draining())
    assert (await failure_of(two)).reason == "DRAINING"
    two.abort(FinishReason.ABORT)
    assert two_aborts, "a request that failed here still runs there"
    table.detach_all()
    three.abort(FinishReason.ABORT)
    assert not three_aborts, "a scheduler that is gone is told nothing"
    assert table.orphans() == [], "what has ended is not handed on"


@in_loop
async def test_the_table_says_when_it_is_empty() -> None:
    table = LiveRequests()
    await table.wait_empty()
    live, _ = live_request()
    table.add(live)
    waiting = asyncio.create_task(table.wait_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    table.remove(live)
    await waiting
    assert len(table) == 0
