"""Text, token by token: detokenised, searched, cut."""

from frontend_svc.stop_strings import StopStrings
from frontend_svc.text_stream import TextStream
from frontend_svc.tokenizer import ByteTokenizer

EOS = 256


def stream(*stops: str, include_match: bool = False, skip_special: bool = True) -> TextStream:
    detokenizer = ByteTokenizer([EOS]).detokenizer(skip_special_tokens=skip_special)
    return TextStream(
        detokenizer, StopStrings(stops) if stops else None, include_match=include_match
    )


def push_all(text: TextStream, data: bytes) -> list[str]:
    """What each byte brings, up to the match."""
    sent = []
    for byte in data:
        sent.append(text.push(byte))
        if text.matched is not None:
            break
    return sent


def test_without_stop_strings_characters_go_out_as_they_are_complete() -> None:
    text = stream()
    assert push_all(text, "aé🙂".encode()) == ["a", "", "é", "", "", "", "🙂"]
    assert (text.push(EOS), text.finish(), text.matched) == ("", "", None)


def test_a_cut_character_ends_as_the_replacement() -> None:
    text = stream("x")
    assert push_all(text, "🙂".encode()[:2]) == ["", ""]
    assert text.finish() == "\ufffd"


def test_the_match_is_cut_off_or_sent_as_asked() -> None:
    text = stream("end")
    assert push_all(text, b"an end!") == ["a", "n", " ", "", "", ""]
    assert text.matched == "end"
    text = stream("end", include_match=True)
    assert "".join(push_all(text, b"an end!")) == "an end"


def test_a_stop_string_ends_inside_a_character_of_several_tokens() -> None:
    text = stream("🙂")
    assert push_all(text, "a🙂b".encode()) == ["a", "", "", "", ""]
    assert text.matched == "🙂"


def test_what_is_held_back_comes_at_the_end() -> None:
    text = stream("end")
    assert "".join(push_all(text, b"an en")) == "an "
    assert (text.finish(), text.matched) == ("en", None)


def test_the_last_characters_can_complete_a_match_too() -> None:
    text = stream("\ufffd")
    assert push_all(text, b"a\xf0") == ["a", ""]
    assert (text.finish(), text.matched) == ("", "\ufffd")
