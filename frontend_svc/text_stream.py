"""The text of one continuation: detokenised, searched for stop strings, cut at the first.

Of ids and text: the ids that a user gets include the token that completed the match and all before
it; the text ends where the match begins, or where it ends with include_stop_string.
"""

from frontend_svc.detokenizer import Detokenizer
from frontend_svc.stop_strings import StopScanner, StopStrings


class TextStream:
    """Token by token, the text that may be sent. After a match it must not be fed again."""

    __slots__ = ("_detokenizer", "_include_match", "_scanner")

    def __init__(
        self, detokenizer: Detokenizer, stops: StopStrings | None, *, include_match: bool
    ) -> None:
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops) if stops is not None else None
        self._include_match = include_match

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._scanner.matched if self._scanner is not None else None

    def push(self, token_id: int) -> str:
        return self._scan(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """The rest, when no more tokens come; it too can complete a match."""
        text = self._scan(self._detokenizer.finish())
        if self._scanner is None or self._scanner.matched is not None:
            return text
        return text + self._scanner.finish()

    def _scan(self, text: str) -> str:
        if self._scanner is None:
            return text
        sendable = self._scanner.push(text)
        if self._include_match and self._scanner.matched is not None:
            return sendable + self._scanner.matched
        return sendable
