"""Token ids to text while they come, with stop texts."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ullage.models.tokenizer import Tokenizer


class Detokenizer:
    """The text of one request. All pieces joined are ``Tokenizer.decode`` of all tokens, cut before the stop text.

    Text is released as soon as it can't change any more: bytes of an unfinished character wait for the rest, and what
    may be the beginning of a stop text waits until that is decided. Of several stop texts, the one that is complete
    first ends the output, the longest of those complete at the same character: this doesn't depend on how the text is
    cut into tokens.

    :param min_tokens: a stop text that is complete within so many tokens counts as text
    :param visible_token_ids: control tokens whose names are text here
    :param continues_text: the prompt ends in text, not in a control token: a first space is then part of the text
        even where decoding from the start would take it away
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Iterable[str] = (),
        *,
        min_tokens: int = 0,
        continues_text: bool = False,
        visible_token_ids: Collection[int] = (),
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._visible = {token_id: tokenizer.token_text(token_id).encode() for token_id in visible_token_ids}
        self._strip_space = tokenizer.strip_leading_space and not continues_text
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = [_StopText(text) for text in stop]
        self._num_tokens_to_pass = min_tokens
        self._held = ""
        """Decoded and not released: the longest end of the text that begins a stop text."""
        self.stop_hit: str | None = None
        """The stop text that ended the output."""

    def push(self, token_id: int) -> str:
        """What the token lets go. Nothing more comes after a stop text."""
        self._num_tokens_to_pass -= 1
        data = self._visible.get(token_id) or self._token_bytes(token_id)
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._release(self._utf8.decode(data))

    def finish(self) -> str:
        """The rest, when no token comes any more. Half a character becomes U+FFFD."""
        released = self._release(self._utf8.decode(b"", final=True))
        rest, self._held = self._held, ""
        return released + rest

    def _release(self, text: str) -> str:
        if self.stop_hit is not None:
            return ""
        start_of_text = len(self._held)
        self._held += text
        for end, char in enumerate(text, start=start_of_text + 1):
            complete = [stop.text for stop in self._stops if stop.advance(char)]
            if complete and self._num_tokens_to_pass < 0:
                self.stop_hit = max(complete, key=len)
                released, self._held = self._held[: end - len(self.stop_hit)], ""
                return released
        num_kept = max((stop.num_matched for stop in self._stops), default=0)
        num_released = len(self._held) - num_kept
        released, self._held = self._held[:num_released], self._held[num_released:]
        return released


class _StopText:
    """Follows a text, one character at a time, and knows how much of a stop text the text so far ends in.

    Source: Knuth, Morris, Pratt, "Fast pattern matching in strings", 1977: constant time a character, on average.
    """

    def __init__(self, text: str) -> None:
        assert text, "an empty stop text is refused by SamplingParams"
        self.text = text
        self.num_matched = 0
        self._borders = [0] * len(text)
        """For each beginning of the stop text: how long its longest end is that is also a beginning."""
        for i in range(1, len(text)):
            border = self._borders[i - 1]
            while border and text[border] != text[i]:
                border = self._borders[border - 1]
            self._borders[i] = border + (text[border] == text[i])

    def advance(self, char: str) -> bool:
        """:returns: the stop text is complete"""
        while self.num_matched and self.text[self.num_matched] != char:
            self.num_matched = self._borders[self.num_matched - 1]
        self.num_matched += self.text[self.num_matched] == char
        if self.num_matched < len(self.text):
            return False
        self.num_matched = self._borders[-1]  # where the next one may have begun
        return True
