"""The console script. Imports nothing at first: Ctrl-C while it loads shall end it in silence."""

import signal


def main() -> None:
    """Python would answer a Ctrl-C during the imports with a traceback from wherever they are."""
    answer = signal.getsignal(signal.SIGINT)
    if answer is signal.default_int_handler:  # a background job of a script ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from twostroke_client.cli import main as run

    signal.signal(signal.SIGINT, answer)
    run()
