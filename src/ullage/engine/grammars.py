"""Compiles constraints. The one file that knows the library that does it (llguidance).

A grammar is compiled once; each request then gets a copy of the matcher, which takes microseconds.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ullage.base.errors import InvalidRequestError
from ullage.engine.constraint import Constraint
from ullage.engine.grammar_limits import check_limits

if TYPE_CHECKING:
    from ullage.models.tokenizer import Tokenizer

Matcher = LLMatcher
MaskExecutor = LLExecutor

MAX_LEXER_STATES = 20_000
"""Of one matcher; about 2 KB each."""
MAX_CACHED = 16
"""Compiled grammars that are kept."""
MAX_REASON_CHARS = 200

JSON_OPTIONS = {
    # A model that is unsure can go on with white space for ever.
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,24}",
    # Escaped, a name could be a second spelling of one that the schema bounds, or half a surrogate pair.
    "json_allowed_escapes": 'nrbtf\\"',
    # A schema can't say that it needn't be followed.
    "lenient": False,
    "coerce_one_of": False,
}


class GrammarCompiler:
    """Makes matchers for one vocabulary. May be used from several threads; what is slow releases the interpreter.

    :param token_bytes: what each token adds to the text; nothing for a token that isn't text
    :param eos_token_ids: allowed where the text may end, and nowhere else
    :param encode: how the model's own tokenizer cuts a text, which is how forced text comes; None: the longest first
    """

    def __init__(
        self,
        token_bytes: Iterable[bytes],
        eos_token_ids: Sequence[int],
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        self._token_bytes = token_bytes
        self._eos_token_ids = sorted(eos_token_ids)
        self._encode = encode
        self._limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        """Around the cache, never around compiling: the engine's thread may wait for it."""
        self._compiling = threading.Lock()

    @staticmethod
    def of(tokenizer: Tokenizer, vocab_size: int) -> GrammarCompiler:
        """:param vocab_size: the model's, whose rows may be more than the tokens"""
        encode = partial(tokenizer.encode, add_special_tokens=False)
        return GrammarCompiler(map(tokenizer.token_bytes, range(vocab_size)), tuple(tokenizer.eos_token_ids), encode)

    @staticmethod
    def of_bytes() -> GrammarCompiler:
        """For a check alone: a vocabulary that can spell everything."""
        return GrammarCompiler([*(bytes([i]) for i in range(256)), b""], [256])

    def matcher(self, constraint: Constraint) -> Matcher:
        """A matcher at the beginning of the text.

        :raises InvalidRequestError: the constraint isn't valid, isn't supported, is too large, or allows nothing
        """
        if (found := self._cached(constraint)) is not None:
            return found
        with self._compiling:  # one after another: they share the vocabulary, and may be the same
            if (found := self._cached(constraint)) is not None:
                return found
            compiled = self._compile(constraint)
            with self._lock:
                self._compiled[constraint] = compiled
                if len(self._compiled) > MAX_CACHED:
                    self._compiled.popitem(last=False)
                return compiled.deep_copy()

    def _cached(self, constraint: Constraint) -> LLMatcher | None:
        with self._lock:
            compiled = self._compiled.get(constraint)
            if compiled is None:
                return None
            self._compiled.move_to_end(constraint)
            return compiled.deep_copy()

    def _compile(self, constraint: Constraint) -> LLMatcher:
        check_limits(constraint)
        matcher = LLMatcher(self._tokens(), _grammar(constraint), log_level=0, limits=self._limits)
        if matcher.is_error():
            raise InvalidRequestError(_reason(matcher.get_error()))
        matcher.compute_bitmask()  # what it costs is paid here; and only now it is known whether anything is allowed
        if matcher.is_error():
            raise InvalidRequestError("it allows no text at all, or is too complex")
        return matcher

    def _tokens(self) -> LLTokenizer:
        """Made for the first constraint: for a vocabulary of 262,144 tokens it takes a second."""
        if self._vocabulary is None:
            if not self._eos_token_ids:
                raise InvalidRequestError(
                    "this model has no end-of-sequence token, so a constrained text could not end"
                )
            token_bytes, self._token_bytes = list(self._token_bytes), ()
            wrapper = TokenizerWrapper(_Vocabulary(token_bytes, self._eos_token_ids[0], self._encode))
            self._vocabulary = LLTokenizer(wrapper, n_vocab=len(token_bytes), eos_token=self._eos_token_ids)
        return self._vocabulary


class _Vocabulary:
    """In the shape that the library reads."""

    bos_token_id = None

    def __init__(
        self, tokens: list[bytes], eos_token_id: int, encode: Callable[[str], Sequence[int]] | None = None
    ) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self._encode = encode
        self._ids = {data: token_id for token_id, data in enumerate(tokens) if data}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """Tokens that spell the text exactly: some tokenizers put a space before it, or leave out what they lack."""
        if self._encode is not None:
            token_ids = self._encode(text.decode(errors="ignore"))
            if b"".join(self.tokens[token_id] for token_id in token_ids) == text:
                return list(token_ids)
        return self._longest_first(text)

    def _longest_first(self, text: bytes) -> list[int]:
        token_ids = []
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:  # the vocabulary can't spell it: the matcher will find that out
                break
            token_ids.append(self._ids[text[start:end]])
            start = end
        return token_ids


def _grammar(constraint: Constraint) -> str:
    match constraint.kind:
        case "json_object":
            return _json_grammar('{"type": "object"}')
        case "json_schema":
            return _json_grammar(constraint.text)
        case "regex":
            return LLMatcher.grammar_from_regex(constraint.text)
        case "grammar":
            return LLMatcher.grammar_from_lark(constraint.text)


def _json_grammar(schema: str) -> str:
    if schema.strip() in ("true", "false"):  # schemas too, but the library's options need an object
        schema = {"true": "{}", "false": '{"enum": []}'}[schema.strip()]
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidRequestError(_reason(str(error))) from None


def _reason(message: str) -> str:
    """The library's reason without the text it is about, which came from a client."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = causes[0] if causes else lines[0] if lines else "it can't be compiled"
    return reason if len(reason) <= MAX_REASON_CHARS else reason[: MAX_REASON_CHARS - 1] + "…"


def inline_schema(schema: object) -> str:
    """A JSON schema as a part of a grammar."""
    options = {"x-guidance": JSON_OPTIONS}
    return "%json " + json.dumps({**schema, **options} if isinstance(schema, dict) else schema)
