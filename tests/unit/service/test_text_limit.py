from __future__ import annotations

import pytest
from tests.scripted_engine import ByteTokenizer

from ullage.base.errors import ContextLengthError
from ullage.service.text_limit import TextLimit


class PairTokenizer(ByteTokenizer):
    """Its longest token has eight bytes."""

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
    limit.check(80, "prompt")
    with pytest.raises(ContextLengthError, match="81 characters are at least 11 tokens") as caught:
        limit.check(81, "messages")
    assert caught.value.param == "messages"
