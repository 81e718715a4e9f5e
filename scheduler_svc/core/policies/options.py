"""Options of a policy: texts by name, as they come from the command line or an RPC."""

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Self


class OptionError(ValueError):
    """An option is unknown, or its value is. The text is for the person who gave it."""


class Options:
    """Hands out each option once; what nobody took when its `with` block ends is an error."""

    def __init__(self, given: Mapping[str, str] | None) -> None:
        self._left = dict(given or {})

    def number(self, name: str, default: float, *, least: float = 0.0) -> float:
        """The finite number `name`, at least `least`."""
        return self._number(name, self._left.pop(name, str(default)), least)

    def numbers(self, prefix: str, *, least: float = 0.0) -> dict[str, float]:
        """All options `prefix.X`, by X."""
        names = [name for name in self._left if name.startswith(f"{prefix}.")]
        return {
            name.partition(".")[2]: self._number(name, self._left.pop(name), least)
            for name in names
        }

    @staticmethod
    def _number(name: str, text: str, least: float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least:
            raise OptionError(f"option {name} must be a number of at least {least:g}, is {text!r}")
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self._left:
            raise OptionError(f"there is no option {', '.join(sorted(self._left))}")
