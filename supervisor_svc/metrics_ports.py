"""The ports on which front ends show metrics, where an order moves them.

An old front end gives its place up before its successor takes the port that goes with it. One that
cannot be had has to be found before that, and for all front ends before the first one is replaced.
"""

from collections.abc import Sequence

from supervisor_svc.arguments import value_of, with_options
from svc_shell.listening import DEFAULT_HOST, AddressError, bound
from svc_shell.presence import number_of


def refusal(name: str, command: Sequence[str], arguments: Sequence[str]) -> str:
    """Why the front end of that name would not get the port that these options give it; empty if it
    would, or keeps the one that it has."""
    asked = with_options(command, arguments)
    port = _port(name, asked)
    if port is None or port == _port(name, command):
        return ""
    try:
        bound(value_of(asked, "--host") or DEFAULT_HOST, port, purpose="show metrics").close()
    except AddressError as error:
        return str(error)
    return ""


def _port(name: str, command: Sequence[str]) -> int | None:
    """None: it shows none, or what was said is no number, as the check of its options will find."""
    first = value_of(command, "--metrics-port") or ""
    return int(first) + number_of(name) - 1 if first.isdecimal() and int(first) else None
