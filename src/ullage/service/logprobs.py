"""Log-probabilities in the shapes of the two APIs.

A token may be a part of a character. Its ``bytes`` are always its own, so that those of consecutive tokens join to the
text; as a text it then reads ``bytes:\\xf0\\x9f``, as OpenAI writes it.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ullage.engine.client import TokenLogprob
from ullage.protocol.chat import ChatLogprobs, TokenLogprobEntry, TopLogprob
from ullage.protocol.completions import CompletionLogprobs

if TYPE_CHECKING:
    from ullage.models.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0
"""What OpenAI writes for a token that can't be chosen: JSON has no infinity."""


def chat_logprobs(tokens: Sequence[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            TokenLogprobEntry(
                **_entry(token.token_id, token.logprob, tokenizer),
                top_logprobs=[_entry(token_id, logprob, tokenizer) for token_id, logprob in token.top_logprobs],
            )
            for token in tokens
        ]
    )


def _entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    return TopLogprob(
        token=token_name(token_id, tokenizer),
        logprob=finite(logprob),
        bytes=list(tokenizer.token_bytes(token_id)),
    )


class CompletionLogprobsWriter:
    """Writes the log-probabilities of one choice piece by piece; keeps where the next token begins in the text.

    The text is that of ``ullage.engine.detokenizer``: after a control token it begins without its first space, where
    the tokenizer puts one there.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._strip_space = tokenizer.strip_leading_space and all(map(tokenizer.is_control, prompt[-1:]))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def write(self, tokens: Iterable[TokenLogprob]) -> CompletionLogprobs:
        result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token in tokens:
            result["tokens"].append(token_name(token.token_id, self._tokenizer))
            result["token_logprobs"].append(finite(token.logprob))
            result["top_logprobs"].append(self._top(token))
            result["text_offset"].append(self._num_chars)
            self._num_chars += len(self._decoder.decode(self._text_bytes(token.token_id)))
        return result

    def _text_bytes(self, token_id: int) -> bytes:
        data = self._tokenizer.token_bytes(token_id)
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return data

    def _top(self, token: TokenLogprob) -> dict[str, float]:
        """By name, the chosen token included. Two tokens that print alike stay two entries."""
        by_name: dict[str, float] = {}
        for token_id, logprob in dict([*token.top_logprobs, (token.token_id, token.logprob)]).items():
            name = token_name(token_id, self._tokenizer)
            by_name[name if name not in by_name else f"token_id:{token_id}"] = finite(logprob)
        return by_name


def token_name(token_id: int, tokenizer: Tokenizer) -> str:
    """The token as text: its characters, its escaped bytes, or a special token's name."""
    raw = tokenizer.token_bytes(token_id)
    if not raw:
        return tokenizer.token_text(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB
