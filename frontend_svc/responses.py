"""From what came back to the messages of the stream."""

import math
from dataclasses import dataclass

from frontend_svc.streams import Ending, LiveRequest, Piece
from frontend_svc.tokenizer import Tokenizer
from svc_wire.ids import FinishReason
from twostroke.v1 import generation_pb2 as pb

_REASONS = {
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}


@dataclass(slots=True)
class Times:
    """When a request passed its stations; seconds, monotonic."""

    arrived: float
    submitted: float = 0.0
    first_token: float = 0.0
    pause: float = 0.0
    """The longest time, in seconds, that it waited for a further message."""


def response(piece: Piece, tokenizer: Tokenizer) -> pb.GenerateResponse:
    message = pb.GenerateResponse(first_index=piece.first_index, text=piece.text)
    # For a list, extending takes half the time of the constructor; this is done for every token.
    message.token_ids.extend(piece.token_ids)
    for chosen, *top in piece.logprobs:
        message.logprobs.append(
            pb.TokenLogprobs(
                chosen=_logprob(*chosen, tokenizer),
                top=[_logprob(*pair, tokenizer) for pair in top if pair[1] > -math.inf],
            )
        )
    return message


def _logprob(token_id: int, logprob: float, tokenizer: Tokenizer) -> pb.Logprob:
    return pb.Logprob(token_id=token_id, text=tokenizer.token_text(token_id), logprob=logprob)


def finish(
    live: LiveRequest, ending: Ending, prompt_len: int, times: Times, now: float
) -> pb.Finish:
    finished = ending.finished
    message = pb.Finish(
        reason=pb.FINISH_REASON_STOP,
        usage=pb.Usage(prompt_tokens=prompt_len, output_tokens=len(live.committed)),
        timings=pb.Timings(
            queued_ms=(times.submitted - times.arrived) * 1e3,
            first_token_ms=(times.first_token - times.arrived) * 1e3,
            total_ms=(now - times.arrived) * 1e3,
        ),
    )
    if ending.matched is not None:
        message.text = ending.matched
    elif finished is not None:
        message.reason = _REASONS[finished.reason]
        if finished.reason is FinishReason.STOP_TOKEN:
            message.token_id = live.committed[-1]
    if finished is not None:
        message.usage.cached_tokens = finished.cached_tokens
        message.usage.preemptions = finished.preemptions
        message.timings.queued_ms += finished.queued_ns / 1e6
        message.timings.executor_busy_share = finished.busy_share
    return message
