"""How fast the executor is, from the timings in its results: averages that follow its changes.

a step that only decodes takes             step_s
a step that reads n prompt tokens besides  step_s + n * prompt_token_s

The second is not quite so: a few tokens hide behind the reading of the weights, many do not, so
that small pieces promise more than large ones keep. Hence it is believed at once that a token costs
more, and only slowly that it costs less; and a piece is at most twice the largest of late.
"""

from svc_wire.frames import StepTiming

_SHARE_OF_NEW = 0.1
PIECE_MIN = 32
"""Prompt tokens that a step may always read: prompts get on, whatever the target."""


class Pace:
    """Both numbers are 0 until a step was seen that shows them."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self.prompt_token_s = 0.0
        self._piece_tokens = 0.0
        """Prompt tokens of the largest step of late."""

    def observe(self, timing: StepTiming, rows: int, tokens: int) -> None:
        """A step of so many rows and input tokens was computed."""
        self.observe_s((timing.compute_end_ns - timing.compute_begin_ns) / 1e9, rows, tokens)

    def observe_s(self, took_s: float, rows: int, tokens: int) -> None:
        """The same, by the time that it took."""
        if took_s <= 0:
            return
        if tokens == rows:
            self.step_s = _mixed(self.step_s, took_s)
        elif self.step_s:
            piece = tokens - rows
            extra_s = max(0.0, took_s - self.step_s) / piece
            self.prompt_token_s = max(extra_s, _mixed(self.prompt_token_s, extra_s))
            self._piece_tokens = max(piece, _mixed(self._piece_tokens, piece))

    def tokens_in(self, time_s: float) -> int:
        """Prompt tokens that could be read in that time."""
        return int(time_s / self.prompt_token_s) if self.prompt_token_s else 0

    def piece_tokens(self, target_s: float) -> int:
        """Prompt tokens that a step may read to take no longer than `target_s`."""
        if not self.prompt_token_s:
            return PIECE_MIN
        fits = int((target_s - self.step_s) / self.prompt_token_s)
        return max(PIECE_MIN, min(fits, int(2 * self._piece_tokens)))


def _mixed(average: float, value: float) -> float:
    return value if not average else average + _SHARE_OF_NEW * (value - average)
