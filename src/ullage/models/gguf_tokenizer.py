"""A tokenizer from the tables in a GGUF file, built with the parts of Hugging Face's ``tokenizers``.

Keys and token types: the GGUF specification. Defaults, pre-tokenizer names and what ends a generation: as llama.cpp
reads them, so that a file behaves alike in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from ullage.models.fields import Fields
from ullage.models.tokenizer_parts import END_OF_GENERATION_NAMES, SPACE_SYMBOL, PieceScheme, TokenizerParts

_SECTION = "tokenizer.ggml."


class TokenType(IntEnum):
    """What a token is for, as the file says."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a byte-level vocabulary wants text cut before merging, and what it implies where the file says nothing."""

    pattern: str | None
    """Each match is a piece of its own; None: GPT-2's pattern, which the library has built in."""
    single_digits: bool = False
    ignore_merges: bool = False
    """A piece that is a token as a whole is that token, whatever the merges would make of it."""
    add_bos: bool = False
    compose: bool = False
    """Unicode NFC first."""


_LLAMA3 = PreTokenizer(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    ignore_merges=True,
    add_bos=True,
)
_QWEN2 = PreTokenizer(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    compose=True,
)
_TEKKEN = PreTokenizer(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges=True,
    add_bos=True,
)
_GPT2 = PreTokenizer(None)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": _GPT2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "smollm": PreTokenizer(None, single_digits=True),
    "tekken": _TEKKEN,
}
"""By the file's ``tokenizer.ggml.pre``."""


def parts_from_gguf(metadata: Mapping[str, object], path: Path) -> TokenizerParts:
    """:raises ModelFileError: tables that are missing or damaged, or a tokenizer that isn't known"""
    values = {key.removeprefix(_SECTION): value for key, value in metadata.items() if key.startswith(_SECTION)}
    fields = Fields(path, values, _SECTION)
    table = _read_token_table(fields)
    model = fields.text("model")
    if model == "gpt2":
        return _byte_level(fields, table)
    if model == "llama":
        return _sentencepiece(fields, table)
    raise fields.error("model", f"is {model!r}, a tokenizer that isn't known", hint="known are: gpt2, llama")


# -- the token table ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TokenTable:
    tokens: list[str]
    ids: dict[str, int]
    types: NDArray[np.int64]

    def of_type(self, *types: TokenType) -> list[int]:
        return np.flatnonzero(np.isin(self.types, types)).tolist()

    def control_tokens(self) -> dict[str, int]:
        """Conversion scripts often call what ends a turn an ordinary added token; its name says otherwise."""
        control = {self.tokens[i]: i for i in self.of_type(TokenType.CONTROL, TokenType.UNKNOWN)}
        added = (self.tokens[i] for i in self.of_type(TokenType.USER_DEFINED))
        return control | {token: self.ids[token] for token in added if token in END_OF_GENERATION_NAMES}

    def add_to(self, backend: Tokenizer) -> None:
        """Tokens that are looked for in the text before anything else."""
        control = self.control_tokens()
        backend.add_special_tokens([AddedToken(token, normalized=False) for token in control])
        added = [self.tokens[i] for i in self.of_type(TokenType.USER_DEFINED)]
        backend.add_tokens([AddedToken(token, normalized=False) for token in added if token not in control])


def _read_token_table(fields: Fields) -> _TokenTable:
    tokens = _texts(fields, "tokens")
    if not tokens:
        raise fields.error("tokens", "is empty")
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        first, token = next((i, token) for i, token in enumerate(tokens) if ids[token] != i)
        raise fields.error("tokens", f"holds {token!r:.80} twice, at {first} and {ids[token]}")
    if fields.has("token_type"):
        types = _numbers(fields, "token_type", len(tokens)).astype(np.int64)
    else:
        types = np.full(len(tokens), TokenType.NORMAL, dtype=np.int64)
    if not np.all((types >= 0) & (types <= max(TokenType))):
        raise fields.error("token_type", f"holds a type that isn't one of 0..{max(TokenType)}")
    return _TokenTable(tokens, ids, types)


def _texts(fields: Fields, key: str) -> list[str]:
    values = fields.raw(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise fields.error(key, "must be a list of texts")
    return values


def _numbers(fields: Fields, key: str, length: int) -> NDArray[np.number]:
    values = fields.raw(key)
    if not isinstance(values, np.ndarray | list):
        raise fields.error(key, "must be a list of numbers")
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.number) or not np.all(np.isfinite(array)):
        raise fields.error(key, "must be a list of numbers")
    if array.shape != (length,):
        raise fields.error(key, f"has {array.size} entries for {length} tokens")
    return array


# -- the two kinds of tokenizer ----------------------------------------------------------------------------------------


def _byte_level(fields: Fields, table: _TokenTable) -> TokenizerParts:
    if not fields.has("pre"):
        raise fields.error("pre", "is missing", hint="the file is from before May 2024: convert the model again")
    name = fields.text("pre")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise fields.error(
            "pre", f"is {name!r}, a pre-tokenizer that isn't known", hint=f"known are: {', '.join(PRE_TOKENIZERS)}"
        )
    backend = Tokenizer(models.BPE(table.ids, _read_merges(fields, table.ids), ignore_merges=pre.ignore_merges))
    if pre.compose:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pre.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    table.add_to(backend)
    return _parts(fields, table, backend, "byte_level", add_bos=pre.add_bos)


def _read_merges(fields: Fields, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_texts(fields, "merges")):
        left, _, right = line.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise fields.error("merges", f"number {number}, {line!r:.80}, doesn't make one token of two")
        merges.append((left, right))
    return merges


def _sentencepiece(fields: Fields, table: _TokenTable) -> TokenizerParts:
    has_bytes = bool(table.of_type(TokenType.BYTE))
    unknown = _token_id(fields, table, "unknown_token_id", 0)
    model = models.BPE(
        table.ids,
        merges_from_scores(table.tokens, table.ids, _mergeable(fields, table)),
        byte_fallback=has_bytes,
        fuse_unk=True,
        unk_token=None if unknown is None else table.tokens[unknown],
    )
    backend = Tokenizer(model)
    space_prefix = fields.flag("add_space_prefix", True)
    rules: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE_SYMBOL)] if space_prefix else []
    backend.normalizer = normalizers.Sequence([*rules, normalizers.Replace(" ", SPACE_SYMBOL)])
    table.add_to(backend)
    return _parts(fields, table, backend, "sentencepiece", strip_leading_space=space_prefix, add_bos=True)


def _mergeable(fields: Fields, table: _TokenTable) -> list[int]:
    """Tokens that merging may make, best score first. User-defined ones are found in the text before that."""
    scores = _numbers(fields, "scores", len(table.tokens))
    candidates = np.isin(table.types, (TokenType.NORMAL, TokenType.UNUSED, 0))
    order = np.argsort(-scores, kind="stable")
    best_first: list[int] = order[candidates[order]].tolist()
    return best_first


def merges_from_scores(tokens: list[str], ids: Mapping[str, int], best_first: list[int]) -> list[tuple[str, str]]:
    """SentencePiece's merging, written as a list of byte-pair merges.

    SentencePiece always merges the adjacent pair whose joined text is the token with the best score. So every way to
    cut a token into two tokens is a merge that makes it, ranked by its score. Ways to make the same token are ranked
    by the ids of the halves; there SentencePiece takes the leftmost in the text, which a list can't express and which
    only matters where two such ways overlap. Source: ``bpe_model.cc`` of SentencePiece.

    :param best_first: the tokens to make, best score first
    """
    merges: list[tuple[str, str]] = []
    for token_id in best_first:
        token = tokens[token_id]
        ways = [
            (left, right)
            for cut in range(1, len(token))
            if (left := token[:cut]) in ids and (right := token[cut:]) in ids
        ]
        if len(ways) > 1:
            ways.sort(key=lambda way: (ids[way[0]], ids[way[1]]))
        merges += ways
    return merges


# -- what both kinds share ---------------------------------------------------------------------------------------------


def _parts(
    fields: Fields,
    table: _TokenTable,
    backend: Tokenizer,
    scheme: PieceScheme,
    *,
    strip_leading_space: bool = False,
    add_bos: bool,
) -> TokenizerParts:
    """:param add_bos: what holds when the file doesn't say"""
    defaults = {"bos_token_id": 1, "eos_token_id": 2} if scheme == "sentencepiece" else {}
    bos = _token_id(fields, table, "bos_token_id", defaults.get("bos_token_id"))
    eos = _token_id(fields, table, "eos_token_id", defaults.get("eos_token_id"))
    add_bos = fields.flag("add_bos_token", add_bos)
    if add_bos and bos is None:
        raise fields.error("add_bos_token", "wants BOS before every prompt, but no bos_token_id says which token it is")
    control = table.control_tokens()
    ends = {eos, *(_token_id(fields, table, key) for key in ("eot_token_id", "eom_token_id"))} - {None}
    named = {token_id for name, token_id in control.items() if name in END_OF_GENERATION_NAMES}
    return TokenizerParts(
        backend=backend,
        scheme=scheme,
        strip_leading_space=strip_leading_space,
        vocab_size=len(table.tokens),
        control_tokens=control,
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=frozenset(token_id for token_id in ends | named if token_id is not None),
        add_bos=add_bos,
    )


def _token_id(fields: Fields, table: _TokenTable, key: str, default: int | None = None) -> int | None:
    """A default holds only where the vocabulary has such a token."""
    last = len(table.tokens) - 1
    if fields.has(key):
        return fields.integer(key, minimum=0, maximum=last)
    return default if default is not None and default <= last else None
