"""The border to gRPC, where no real call can be made to behave badly enough."""

import asyncio
from typing import cast

import pytest

from frontend_svc import boundary, errors
from frontend_svc.boundary import Context
from frontend_svc.tally import Tally
from tests.support.frontend import in_loop
from twostroke.v1 import generation_pb2 as pb


class StuckContext:
    """A call whose client reads nothing, so that the status cannot be written."""

    async def abort_with_status(self, status: object) -> None:
        await asyncio.Event().wait()


@in_loop
async def test_a_status_that_cannot_be_sent_does_not_keep_the_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(request: object, context: Context) -> None:
        raise errors.slow_reader(5000)

    monkeypatch.setattr(boundary, "ABORT_WAIT_S", 0.01)
    handler = boundary._guarded(fails, "Generate", Tally())
    with pytest.raises(asyncio.CancelledError):
        await handler(pb.GenerateRequest(), cast("Context", StuckContext()))
