"""An answer that is resumed after any of its tokens has the text of one that never broke."""

from hypothesis import given
from hypothesis import strategies as st

from frontend_svc.preparation import prepare
from frontend_svc.resume import ResumeToken
from frontend_svc.served_model import load_model
from frontend_svc.text_stream import TextStream
from svc_wire.capacity import ModelInfo
from svc_wire.frontend_link import Attached
from tests.support.frontend import NOON
from twostroke.v1 import generation_pb2 as pb

VOCAB = 258
MODEL = load_model(
    Attached(1, ModelInfo(name="m", path="", eos_ids=(256,), dtype="", device=""), VOCAB, 1000),
    None,
    lambda: NOON,
)
# Few characters, so that stop strings are met and half met; some of two and four bytes.
TEXTS = st.text("abé🙂", max_size=40)
IDS = TEXTS.map(lambda text: [*text.encode()]) | st.lists(st.integers(0, VOCAB - 1), max_size=40)
STOPS = st.lists(st.text("abé🙂", min_size=1, max_size=5), max_size=3)


def feed(stream: TextStream, ids: list[int]) -> tuple[str, list[int]]:
    """The text of these ids, and those up to the end of a stop string."""
    text = ""
    for index, token_id in enumerate(ids):
        if stream.matched is not None:
            return text, ids[:index]
        text += stream.push(token_id)
    return text, ids


@given(ids=IDS, stops=STOPS, include=st.booleans(), data=st.data())
def test_the_text_goes_on_where_it_stopped(
    ids: list[int], stops: list[str], include: bool, data: st.DataObject
) -> None:
    stop = pb.StopCriteria(strings=stops, include_stop_string=include)
    request = pb.GenerateRequest(text="hi", stop=stop)
    token = ResumeToken.draw(MODEL)

    whole = prepare(request, MODEL, 1, token).text
    assert whole is not None
    text, ids = feed(whole, ids)
    break_at = data.draw(st.integers(0, len(ids)))
    broken = prepare(request, MODEL, 1, token).text
    assert broken is not None
    seen, _ = feed(broken, ids[:break_at])

    request.resume.CopyFrom(pb.Resume(token=token.text(), token_ids=ids[:break_at]))
    resumed = prepare(request, MODEL, 2, ResumeToken.draw(MODEL))
    assert resumed.text is not None
    rest, _ = feed(resumed.text, ids[break_at:])
    assert seen + rest == text
    assert resumed.text.matched == whole.matched
    if whole.matched is None:
        assert resumed.text.finish() == whole.finish()
    assert resumed.token == token, "the name and the seed stay"
