"""Stop strings: every way to cut a text into tokens gives the same answer."""

import itertools
from collections.abc import Iterator, Sequence

import pytest

from frontend_svc.stop_strings import StopScanner, StopStrings


def splits(text: str) -> Iterator[list[str]]:
    """All ways to cut a text into pieces that are not empty."""
    for cuts in itertools.product([False, True], repeat=max(0, len(text) - 1)):
        pieces = [text[:1]]
        for cut, character in zip(cuts, text[1:], strict=True):
            if cut:
                pieces.append(character)
            else:
                pieces[-1] += character
        yield pieces


def scan(stops: Sequence[str], pieces: Sequence[str]) -> tuple[str, str | None]:
    """The text that goes out, and the match."""
    scanner = StopScanner(StopStrings(stops))
    sent = ""
    for piece in pieces:
        sent += scanner.push(piece)
        if scanner.matched is not None:
            return sent, scanner.matched
    return sent + scanner.finish(), None


@pytest.mark.parametrize(
    ("stops", "text", "sent", "matched"),
    [
        (["stop"], "do stop now", "do ", "stop"),
        (["stop"], "sto", "sto", None),
        (["stop"], "ststop", "st", "stop"),
        (["aab"], "aaaab", "aa", "aab"),
        (["\n\n"], "one\ntwo\n\nx", "one\ntwo", "\n\n"),
        (["é🙂"], "aé🙂b", "a", "é🙂"),
        (["abcd", "bc"], "xabcd", "xa", "bc"),
        (["bc", "abc"], "xabcd", "x", "abc"),
        (["abc", "abcde"], "abcde", "", "abc"),
        (["ababac", "bab"], "aababac", "aa", "bab"),
        (["###", "#end"], "a##end", "a#", "#end"),
        (["x", "x"], "yx", "y", "x"),
        (["zzz"], "", "", None),
    ],
)
def test_every_split_gives_the_same(
    stops: list[str], text: str, sent: str, matched: str | None
) -> None:
    for pieces in splits(text) if text else [[]]:
        assert scan(stops, pieces) == (sent, matched), pieces


def test_only_what_may_become_a_match_is_held_back() -> None:
    scanner = StopScanner(StopStrings(["<end>", "nothing"]))
    assert scanner.push("all of it ") == "all of it "
    assert scanner.push("but a <") == "but a "
    assert scanner.push("e") == ""
    assert scanner.push("mpty> n") == "<empty> "
    assert scanner.push("o") == ""
    assert scanner.finish() == "no"


def test_what_is_held_back_is_never_longer_than_a_stop_string() -> None:
    scanner = StopScanner(StopStrings(["aaaa"]))
    sent = "".join(scanner.push(piece) for piece in ["aab", "aaab", "aa", "b" * 5, "aaa"])
    assert sent == "aabaaabaabbbbb"
    assert scanner.finish() == "aaa"


def test_feeding_after_a_match_is_a_mistake_of_ours() -> None:
    scanner = StopScanner(StopStrings(["a"]))
    scanner.push("a")
    with pytest.raises(AssertionError):
        scanner.push("b")
