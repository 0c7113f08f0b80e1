from __future__ import annotations

import pytest
from tests.scripted_engine import ByteTokenizer

from ullage.base.errors import ContextLengthError
from ullage.service.text_limit import PIECE_CHARS, TextLimit


class PairTokenizer(ByteTokenizer):
    """Its longest token has eight bytes."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [7] * (len(text) // 8)

    def token_bytes(self, token_id: int) -> bytes:
        return b"abcdefgh" if token_id == 7 else b"a"


def test_token_ids_are_counted_before_they_are_copied():
    limit = TextLimit(ByteTokenizer(), max_tokens=10)
    limit.check_num_tokens(10, "prompt")
    with pytest.raises(ContextLengthError, match="11 tokens, but the context limit is 10 tokens") as caught:
        limit.check_num_tokens(11, "prompt")
    assert caught.value.param == "prompt"


def test_what_could_fit_is_let_through_and_what_could_not_is_refused():
    limit = TextLimit(PairTokenizer(), max_tokens=10)
    limit.check(["a" * 80], "prompt")
    with pytest.raises(ContextLengthError, match="81 characters are at least 11 tokens") as caught:
        limit.check(["a" * 80, "a"], "messages")
    assert caught.value.param == "messages"


class CountingTokenizer(PairTokenizer):
    """A token is two characters, though one may have eight."""

    def __init__(self) -> None:
        self.num_encoded = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.num_encoded += len(text)
        return [1] * (len(text) // 2)


def test_a_text_that_turns_out_too_long_is_counted_no_further_than_needed():
    tokenizer = CountingTokenizer()
    limit = TextLimit(tokenizer, max_tokens=PIECE_CHARS)
    with pytest.raises(ContextLengthError, match="the context limit is 65536 tokens"):
        limit.check(["a" * PIECE_CHARS * 7], "prompt")
    assert tokenizer.num_encoded == PIECE_CHARS * 3


def test_short_texts_are_not_counted():
    tokenizer = CountingTokenizer()
    TextLimit(tokenizer, max_tokens=100).check(["a" * 400], "prompt")
    assert tokenizer.num_encoded == 0


def test_pieces_that_share_their_ends_with_others_are_given_the_benefit_of_the_doubt():
    TextLimit(CountingTokenizer(), max_tokens=100).check(["a" * 29] * 20, "messages")
