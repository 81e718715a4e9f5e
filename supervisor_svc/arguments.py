"""What an order to restart may put on a service's command line, and what becomes of that line."""

from collections.abc import Sequence

from svc_shell.presence import role_of

_OURS = ("--run-dir", "--name", "--share-port", "--replace", "--check", "--help")
"""Where a service runs, and as what, is for the supervisor to say."""
_ADDRESS = ("--host", "--port", "--metrics-port")


def refusal(role: str, arguments: Sequence[str]) -> str:
    """Why an order with these options cannot be obeyed; empty if nothing is against it."""
    named = {word.partition("=")[0] for word in arguments}
    if ours := sorted(named.intersection(_OURS)):
        return f"{ours[0]} is not for an order to say"
    if role_of(role) == "frontend" and (moved := sorted(named.intersection(_ADDRESS))):
        return (
            f"a restart does not move the front ends, whose addresses others know: for another "
            f"{moved[0]}, drain the instance and serve again"
        )
    return ""


def with_options(command: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """A command line with further options. Where these name a policy, the options of the one before
    go, since hardly any other policy has them."""
    kept = list(command)
    if any(word == "--policy" or word.startswith("--policy=") for word in arguments):
        while "--policy-opt" in kept:
            at = kept.index("--policy-opt")
            del kept[at : at + 2]
        kept = [word for word in kept if not word.startswith("--policy-opt=")]
    return [*kept, *arguments]
