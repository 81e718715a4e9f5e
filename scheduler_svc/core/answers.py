"""What a policy says, made plain: values of Python's own types, with no code of its behind them.

A tuple, a number or a text may be of a class of the policy's, and then every comparison later runs
what that class likes. So nothing of the kind is let in. What is taken here is a copy, made by the
methods of the plain types themselves; what is no such value raises Unusable.

These run while the question is open: what they meet of a policy's code, a watchdog can interrupt.
"""

from collections.abc import Callable

from scheduler_svc.core.policies import Key
from scheduler_svc.core.question import PolicyStalled

SHOWN_MAX = 200
"""Characters of a policy's that a log line shows."""
REFUSAL_MAX = 500
"""Characters of a refusal that its sender is told; a gRPC status holds them in any script."""
NAME_MAX = 100


class Unusable(Exception):
    """The answer, its only argument, is none."""

    def __str__(self) -> str:
        return repr(self.args[0])


def key(answer: object, arrival: int) -> Key:
    """Numbers of which the last one is `arrival`."""
    plain = rank(answer)
    if not plain or plain[-1] != arrival:
        raise Unusable(answer)
    return plain


def rank(answer: object) -> Key:
    """Numbers that can be ordered: none of them is NaN."""
    if not isinstance(answer, tuple):
        raise Unusable(answer)
    return tuple([_number(number, answer) for number in tuple.__getitem__(answer, slice(None))])


def _number(number: object, answer: object) -> float:
    if isinstance(number, float):
        plain = float.__float__(number)
        if plain == plain:
            return plain
    elif isinstance(number, int):
        return int.__int__(number)
    raise Unusable(answer)


def count(answer: object, least: int, most: int) -> int:
    """A whole number, `least` to `most`."""
    if isinstance(answer, int) and least <= (plain := int.__int__(answer)) <= most:
        return plain
    raise Unusable(answer)


def text(answer: object) -> str:
    """Characters that can be sent: lone surrogates cannot."""
    if isinstance(answer, str):
        try:
            return str.encode(answer).decode()
        except UnicodeEncodeError:
            pass
    raise Unusable(answer)


def name(answer: object) -> str:
    """A text that is not empty, nor longer than NAME_MAX."""
    plain = text(answer)
    if not 0 < len(plain) <= NAME_MAX:
        raise Unusable(answer)
    return plain


def refusal(answer: object) -> str | None:
    """A text that is not empty, cut to REFUSAL_MAX; None: there is none."""
    if answer is None:
        return None
    if plain := text(answer):
        return plain[:REFUSAL_MAX]
    raise Unusable(answer)


def nothing(_answer: object) -> None:
    """Nothing was asked for."""


def shown(thing: object, by: Callable[[object], str] = repr) -> str:
    """A line for a log, of whatever a policy answered or raised; raises PolicyStalled alone."""
    try:
        line = " ".join(str.encode(by(thing), errors="backslashreplace").decode().split())
    except PolicyStalled:
        raise
    except BaseException:  # noqa: BLE001 - somebody else's code, and nobody to tell of it
        return "what cannot be shown"
    return line if len(line) <= SHOWN_MAX else f"{line[:SHOWN_MAX]}..."
