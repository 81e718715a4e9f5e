"""Generate through a real port: what a good stream looks like."""

from tests.support.frontend import in_loop, private_dir, receive, running
from twostroke.v1 import generation_pb2 as pb


@in_loop
async def test_text_in_text_out() -> None:
    with private_dir() as run_dir:
        async with running(run_dir) as it:
            got = await receive(it.generate(pb.GenerateRequest(text="héllo")))
            assert got.text == "héllo"
            assert bytes(got.token_ids) == "héllo".encode()
            assert got.finish.reason == pb.FINISH_REASON_LENGTH
