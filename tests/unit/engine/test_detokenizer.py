from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.engine.detokenizer import Detokenizer


class Pieces:
    """Stands in for a tokenizer: token i is the i-th of these byte strings."""

    def __init__(self, pieces: Sequence[bytes], *, strip_leading_space: bool = False) -> None:
        self.pieces = pieces
        self.strip_leading_space = strip_leading_space

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def decode(self) -> str:
        data = b"".join(self.pieces)
        return (data.removeprefix(b" ") if self.strip_leading_space else data).decode("utf-8", errors="replace")


def run(pieces: Sequence[bytes], stop: Sequence[str] = (), **options: bool) -> tuple[list[str], str | None]:
    """What each push and the finish released, and the stop text that was hit."""
    detokenizer = Detokenizer(Pieces(pieces), stop, **options)
    released = [detokenizer.push(i) for i in range(len(pieces))]
    return [*released, detokenizer.finish()], detokenizer.stop_hit


def expected(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The definition: the stop text complete first, the longest of those complete there, cuts the whole text."""
    hits = [(text.index(s) + len(s), -len(s), s) for s in stop if s in text]
    if not hits:
        return text, None
    end, _, hit = min(hits)
    return text[: end - len(hit)], hit


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=3),
        st.sampled_from([b"a", b"b", b"ab", b"aab", b" ", "é".encode(), "中"[:1].encode()[:2], "😀".encode()[1:], b""]),
    ),
    max_size=20,
)
STOPS = st.lists(st.text(alphabet="ab é中\ufffd", min_size=1, max_size=5), max_size=4)


@given(PIECES, STOPS, st.booleans())
@settings(deadline=None, max_examples=500)
def test_pieces_joined_are_the_decoded_text_cut_at_the_stop(pieces, stop, strip):
    tokenizer = Pieces(pieces, strip_leading_space=strip)
    detokenizer = Detokenizer(tokenizer, stop)
    released = "".join(detokenizer.push(i) for i in range(len(pieces))) + detokenizer.finish()
    assert (released, detokenizer.stop_hit) == expected(tokenizer.decode(), stop)


@given(st.text(alphabet="ab", max_size=30), STOPS, st.data())
@settings(deadline=None)
def test_the_cut_into_tokens_changes_nothing_and_nothing_waits_without_need(text, stop, data):
    data = data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted))
    bounds = [0, *data, len(text)]
    pieces = [text[a:b].encode() for a, b in pairwise(bounds)]
    released, hit = run(pieces, stop)
    assert ("".join(released), hit) == expected(text, stop)
    for i, bound in enumerate(bounds[1:]):
        so_far, hit = expected(text[:bound], stop)
        if hit is None:
            held = max((n for s in stop for n in range(len(s)) if so_far.endswith(s[:n])), default=0)
            assert "".join(released[: i + 1]) == so_far[: len(so_far) - held]


def test_a_character_is_never_split():
    assert run([b"\xf0\x9f", b"\x98", b"\x80!"]) == (["", "", "😀!", ""], None)


def test_half_a_character_at_the_end_becomes_a_replacement():
    assert run([b"a\xf0\x9f"]) == (["a", "\ufffd"], None)


def test_a_stop_text_over_many_tokens_is_held_back_then_cut():
    assert run([b"Hi", b" E", b"N", b"D", b"more"], ["END"]) == (["Hi", " ", "", "", "", ""], "END")


def test_what_might_have_been_a_stop_text_is_released_when_it_is_not():
    assert run([b"E", b"N", b"x"], ["END"]) == (["", "", "ENx", ""], None)
    assert run([b"E", b"N"], ["END"]) == (["", "", "EN"], None)


def test_the_stop_text_complete_first_wins():
    assert run([b"abcd"], ["bcd", "c"]) == (["ab", ""], "c")
    assert run([b"abcd"], ["c", "bc"]) == (["a", ""], "bc")


def test_nothing_follows_a_stop_text():
    detokenizer = Detokenizer(Pieces([b"a.b", b"c"]), ["."])
    assert detokenizer.push(0) == "a"
    assert detokenizer.push(1) == ""
    assert detokenizer.finish() == ""
    assert detokenizer.finish() == ""


@pytest.mark.parametrize(("continues_text", "text"), [(False, "a b"), (True, " a b")])
def test_a_first_space_belongs_to_text_that_continues_text(continues_text, text):
    detokenizer = Detokenizer(Pieces([b"", b" a", b" b"], strip_leading_space=True), continues_text=continues_text)
    assert "".join(detokenizer.push(i) for i in range(3)) + detokenizer.finish() == text


@given(st.text(alphabet="ab", max_size=20), st.lists(st.text(alphabet="ab", min_size=1, max_size=4)), st.integers(0, 9))
@settings(deadline=None)
def test_only_a_stop_text_completed_after_min_tokens_ends_the_text(text, stop, min_tokens):
    released, hit = run([char.encode() for char in text], stop, min_tokens=min_tokens)
    ends = [(end, -len(s), s) for s in stop for end in range(min_tokens + 1, len(text) + 1) if text[:end].endswith(s)]
    if ends:
        end, _, expected_hit = min(ends)
        text = text[: end - len(expected_hit)]
        assert hit == expected_hit
    assert ("".join(released), hit is None) == (text, not ends)


def test_a_control_token_that_is_asked_for_is_text():
    class Named(Pieces):
        def token_text(self, token_id: int) -> str:
            return "[TOOL_CALLS]"

    detokenizer = Detokenizer(Named([b"a", b"", b""]), visible_token_ids=(1,))
    assert [detokenizer.push(token_id) for token_id in range(3)] == ["a", "[TOOL_CALLS]", ""]
