"""Refuses a prompt that is far too long before it is tokenized or copied, which would take seconds."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from ullage.base.errors import ContextLengthError

if TYPE_CHECKING:
    from ullage.models.tokenizer import Tokenizer

CHEAP_CHARS_PER_TOKEN = 4
"""Texts with no more than this many characters for each token of the context are tokenized without further thought."""


class TextLimit:
    """A token stands for ``longest`` bytes at most, so a text of c characters has at least c / longest tokens.

    Unicode normalisation doesn't break that: a composed character has at least as many bytes as it had parts.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def check_num_tokens(self, num_tokens: int, param: str) -> None:
        """:raises ContextLengthError: more tokens than the context holds"""
        if num_tokens > self._max_tokens:
            self._refuse(f"{num_tokens} tokens", param)

    def check(self, num_chars: int, param: str) -> None:
        """:raises ContextLengthError: however it is tokenized, the text can't fit"""
        if num_chars <= self._max_tokens * CHEAP_CHARS_PER_TOKEN:
            return
        at_least = -(-num_chars // self._longest_token_bytes)
        if at_least > self._max_tokens:
            self._refuse(f"{num_chars} characters are at least {at_least} tokens", param)

    def _refuse(self, asked: str, param: str) -> NoReturn:
        message = f"{asked}, but the context limit is {self._max_tokens} tokens"
        raise ContextLengthError(message, param=param, hint="shorten the prompt")

    @cached_property
    def _longest_token_bytes(self) -> int:
        return max(len(self._tokenizer.token_bytes(token_id)) for token_id in range(self._tokenizer.vocab_size))
