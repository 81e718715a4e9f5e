"""A live request whose scheduler is the test."""

import pytest

from frontend_svc.errors import Failure
from frontend_svc.stop_strings import StopStrings
from frontend_svc.streams import LiveRequest
from frontend_svc.text_stream import TextStream
from frontend_svc.tokenizer import ByteTokenizer
from svc_wire.frontend_link import Submit
from svc_wire.ids import FinishReason
from tests.support.fake_scheduler import finished, logprobs_of

KEY = 7


class Aborts(dict[int, FinishReason]):
    """What the scheduler was told."""

    def send(self, key: int, reason: FinishReason) -> None:
        assert key not in self, "aborted twice"
        self[key] = reason


def live_request(
    *stops: str,
    key: int = KEY,
    text: bool = True,
    ids: bool = True,
    logprobs: int | None = None,
    buffer_tokens: int = 100,
) -> tuple[LiveRequest, Aborts]:
    detokenizer = ByteTokenizer().detokenizer(skip_special_tokens=True)
    compiled = StopStrings(stops) if stops else None
    live = LiveRequest(
        Submit(key, b"", 100, logprobs=logprobs),
        TextStream(detokenizer, compiled, include_match=False) if text or stops else None,
        wants_text=text,
        wants_token_ids=ids,
        buffer_tokens=buffer_tokens,
    )
    aborts = Aborts()
    live.submitted(aborts.send)
    return live, aborts


def commit(live: LiveRequest, text: str | bytes) -> None:
    for token_id in text.encode() if isinstance(text, str) else text:
        live.commit(len(live.committed), token_id, logprobs_of(live.submit, token_id))


def end(live: LiveRequest, reason: FinishReason = FinishReason.LENGTH) -> None:
    live.finish(finished(live.key, reason, output_tokens=len(live.committed)))


async def failure_of(live: LiveRequest) -> Failure:
    with pytest.raises(Failure) as caught:
        await live.take()
    return caught.value
