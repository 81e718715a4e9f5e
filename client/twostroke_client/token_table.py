"""An answer with its log-probabilities, a line a token:

    "The"   89.2 %   "A" 6.1 %   "In" 2.0 %
    " cat"   4.4 %   " dog" 31.0 %   " cat" 4.4 %

Lines come as their tokens do, so that long answers scroll.
"""

import json
import math
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from twostroke_client.terminal import printable, summary
from twostroke_client.values import Delta, Logprob, TokenLogprobs

TOKEN_COLUMNS = 16


def show_tokens(pieces: Iterable[Delta], out: Console, err: Console) -> None:
    """Shows an answer that was asked for with logprobs to its end, then its summary."""
    finish = None
    for delta in pieces:
        for entry in delta.logprobs:
            out.print(Text(line(entry)), soft_wrap=True)
        finish = delta.finish
    if finish is not None:
        err.print(summary(finish), style="dim", soft_wrap=True)


def line(entry: TokenLogprobs) -> str:
    """One token: its text, its probability, and the most likely ones beside it."""
    chosen = f"{_quoted(entry.chosen):<{TOKEN_COLUMNS}} {_percent(entry.chosen):>8}"
    return "   ".join([chosen, *(f"{_quoted(one)} {_percent(one)}" for one in entry.top)])


def _quoted(token: Logprob) -> str:
    """As in JSON, so that spaces and line ends show; a token without text by its number."""
    if not token.text:
        return f"#{token.token_id}"
    return printable(json.dumps(token.text, ensure_ascii=False))


def _percent(token: Logprob) -> str:
    return f"{math.exp(token.logprob) * 100:.1f} %"
