"""The text of one continuation: detokenised, searched for stop strings, cut at the first.

Of ids and text: the ids that a user gets include the token that completed the match and all before
it; the text ends where the match begins, or where it ends with include_stop_string.
"""

from frontend_svc.detokenizer import Detokenizer
from frontend_svc.stop_strings import StopScanner, StopStrings


class TextStream:
    """Token by token, the text that may be sent. After a match it must not be fed again."""

    __slots__ = ("_detokenizer", "_include_match", "_scanner", "matched")

    def __init__(
        self, detokenizer: Detokenizer, stops: StopStrings | None, *, include_match: bool
    ) -> None:
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops) if stops is not None else None
        self._include_match = include_match
        self.matched: str | None = None
        """The stop string that ended the text, if one did."""

    def push(self, token_id: int) -> str:
        text = self._detokenizer.push(token_id)
        return text if self._scanner is None else self._scan(self._scanner, text)

    def finish(self) -> str:
        """The rest, when no more tokens come; it too can complete a match."""
        text = self._detokenizer.finish()
        if self._scanner is None:
            return text
        text = self._scan(self._scanner, text)
        return text if self.matched is not None else text + self._scanner.finish()

    def _scan(self, scanner: StopScanner, text: str) -> str:
        sendable = scanner.push(text)
        self.matched = scanner.matched
        if self._include_match and self.matched is not None:
            return sendable + self.matched
        return sendable
