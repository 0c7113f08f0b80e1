"""Refuses a prompt that is far too long before it is tokenized or copied, which would take seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from ullage.base.errors import ContextLengthError

if TYPE_CHECKING:
    from ullage.models.tokenizer import Tokenizer

CHEAP_CHARS_PER_TOKEN = 4
"""Texts with no more than this many characters for each token of the context are tokenized without further thought."""


PIECE_CHARS = 1 << 16
EDGE_TOKENS = 16
"""How many tokens fewer a piece may be where it stands in its text, far more than its two ends can make up."""


class TextLimit:
    """Two bounds from below. A token stands for ``longest`` bytes at most, so a text of c characters has at least
    c / longest tokens; Unicode normalisation doesn't break that: a composed character has at least as many bytes as it
    had parts. And a text has at least as many tokens as its pieces have, but for their ends: pieces are counted only
    until there are too many.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def check_num_tokens(self, num_tokens: int, param: str) -> None:
        """:raises ContextLengthError: more tokens than the context holds"""
        if num_tokens > self._max_tokens:
            self._refuse(f"{num_tokens} tokens", param)

    def check(self, texts: Sequence[str], param: str) -> None:
        """Takes as long as it takes to tokenize what the context holds: not on the event loop.

        :param texts: that one prompt is made of
        :raises ContextLengthError: however they are put together, they can't fit
        """
        num_chars = sum(map(len, texts))
        if num_chars <= self._max_tokens * CHEAP_CHARS_PER_TOKEN:
            return
        at_least = -(-num_chars // self._longest_token_bytes)
        if at_least > self._max_tokens:
            self._refuse(f"{num_chars} characters are at least {at_least} tokens", param)
        num_tokens = 0
        for piece in _pieces(texts):
            num_tokens += max(0, len(self._tokenizer.encode(piece, add_special_tokens=False)) - EDGE_TOKENS)
            if num_tokens > self._max_tokens:
                self._refuse(f"{num_chars} characters are more than {num_tokens} tokens", param)

    def _refuse(self, asked: str, param: str) -> NoReturn:
        message = f"{asked}, but the context limit is {self._max_tokens} tokens"
        raise ContextLengthError(message, param=param, hint="shorten the prompt")

    @cached_property
    def _longest_token_bytes(self) -> int:
        return max(len(self._tokenizer.token_bytes(token_id)) for token_id in range(self._tokenizer.vocab_size))


def _pieces(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), PIECE_CHARS):
            yield text[start : start + PIECE_CHARS]
