"""The automaton against a search that a reader believes at sight."""

from hypothesis import given
from hypothesis import strategies as st

from frontend_svc.stop_strings import StopScanner, StopStrings

TEXT = st.text("ab\n", max_size=30)


def slow_search(stops: list[str], text: str) -> tuple[str, str | None]:
    """The first end of any stop string; of those that end there, the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    stops=st.lists(st.text("ab\n", min_size=1, max_size=6), min_size=1, max_size=5),
    pieces=st.lists(TEXT, max_size=8),
)
def test_scanning_piece_by_piece_equals_searching_the_whole(
    stops: list[str], pieces: list[str]
) -> None:
    scanner = StopScanner(StopStrings(stops))
    expected, matched = slow_search(stops, "".join(pieces))
    sent = ""
    for piece in pieces:
        sent += scanner.push(piece)
        assert expected.startswith(sent)
        if scanner.matched is not None:
            break
    assert scanner.matched == matched
    assert sent + ("" if matched else scanner.finish()) == expected
