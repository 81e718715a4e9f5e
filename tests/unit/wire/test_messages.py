"""What the field types of messages promise."""

import msgspec
import pytest

from svc_wire import executor_link, frontend_link
from svc_wire.errors import MessageError
from svc_wire.executor_link import Beat
from svc_wire.frontend_link import Outputs, Sampling, Submit


@pytest.mark.parametrize("beat", [Beat(-1, 0), Beat(2**24, 0), Beat(0, -1), Beat(0, 2**40)])
def test_an_epoch_or_step_that_no_word_holds_is_refused(beat: Beat) -> None:
    with pytest.raises(MessageError):
        executor_link.to_executor.decode(executor_link.to_executor.encode(beat))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(top_k=-1), Sampling(top_k=2**31), Sampling(seed=2**63), Sampling(seed=-(2**63) - 1)],
)
def test_sampling_that_no_frame_holds_is_refused(sampling: Sampling) -> None:
    if sampling.seed < -(2**63):
        with pytest.raises(OverflowError):
            frontend_link.to_scheduler.encode(Submit(1, b"", 1, sampling=sampling))
        return
    with pytest.raises(MessageError):
        frontend_link.to_scheduler.decode(
            frontend_link.to_scheduler.encode(Submit(1, b"", 1, sampling=sampling))
        )


def test_a_prompt_is_whole_tokens() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        Submit(1, b"abc", 1)
    data = msgspec.msgpack.encode(["Submit", 1, b"abc", 1])
    with pytest.raises(MessageError, match="3 bytes"):
        frontend_link.to_scheduler.decode(data)


@pytest.mark.parametrize(
    ("keys", "indices", "tokens"), [(8, 4, 8), (8, 8, 4), (16, 4, 4), (7, 4, 4), (8, 4, 5)]
)
def test_outputs_are_of_one_length(keys: int, indices: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="one length"):
        Outputs(bytes(keys), bytes(indices), bytes(tokens), ())


@pytest.mark.parametrize(
    ("counts", "ids", "values"),
    [(b"\2", 8, 4), (b"\2", 4, 8), (b"\1\1", 8, 8), (b"", 4, 4), (b"\1", 0, 0)],
)
def test_log_probabilities_fit_their_counts(counts: bytes, ids: int, values: int) -> None:
    with pytest.raises(ValueError, match="fit their counts"):
        Outputs(bytes(8), bytes(4), bytes(4), (), counts, bytes(ids), bytes(values))


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(MessageError):
        executor_link.to_executor.decode(
            executor_link.to_scheduler.encode(executor_link.Refused(""))
        )
