"""The interface of a policy: a total order over requests.

The core admits the first waiting request of that order, pre-empts the last running one when memory
runs out, and pre-empts the last running one for the first waiting one where the order says so. A
policy decides nothing else, so it cannot leak blocks, forget requests or overrun a budget.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

Key = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """What a policy may know of a request."""

    arrival: int
    """Grows with each accepted request; unique."""
    priority: int
    tenant: str
    prompt_tokens: int
    max_tokens: int


class Policy(Protocol):
    """Orders requests."""

    name: ClassVar[str]

    def key(self, view: RequestView) -> Key:
        """The request's place: smaller goes first.

        Must be a pure function and end with `arrival`, so that no two requests are equal and
        earlier ones of equal rank are never overtaken.
        """
