"""Tokenizers from GGUF tables: small ones made up here."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.base.errors import ModelFileError
from ullage.models.gguf_tokenizer import PRE_TOKENIZERS, merges_from_scores
from ullage.models.tokenizer import Tokenizer, tokenizer_from_gguf
from ullage.models.tokenizer_parts import gpt2_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def metadata(model: str, tokens: dict[str, int], **more: Any) -> dict[str, Any]:
    """:param tokens: the vocabulary in order, with the type of each token"""
    values = {"model": model, "tokens": list(tokens), "token_type": np.array(list(tokens.values()), np.int32), **more}
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def byte_level(tokens: dict[str, int] | None = None, merges: list[str] | None = None, **more: Any) -> dict[str, Any]:
    made = ["Ġ a", "1 2", "a b"] if merges is None else merges
    vocabulary = dict.fromkeys(gpt2_bytes(), NORMAL) | dict.fromkeys((m.replace(" ", "") for m in made), NORMAL)
    return metadata("gpt2", vocabulary | (tokens or {}), merges=made, **{"pre": "smollm", **more})


def sentencepiece(scored: dict[str, float], tokens: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    """Unknown, BOS, EOS and the 256 bytes, then what is given."""
    special = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL} | {f"<0x{i:02X}>": BYTE for i in range(256)}
    vocabulary = special | dict.fromkeys(scored, NORMAL) | (tokens or {})
    scores = np.array([scored.get(token, 0.0) for token in vocabulary], np.float32)
    return metadata(
        "llama", vocabulary, **{"scores": scores, "add_space_prefix": False, "add_bos_token": False, **more}
    )


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]


# -- byte-level --------------------------------------------------------------------------------------------------------


def test_merges_make_longer_tokens():
    assert pieces(tokenizer_from_gguf(byte_level()), "ab a") == ["ab", " a"]


def test_bytes_without_a_merge_stay_bytes():
    tokenizer = tokenizer_from_gguf(byte_level())
    assert tokenizer.encode("é") == [gpt2_bytes_id(0xC3), gpt2_bytes_id(0xA9)]
    assert tokenizer.decode(tokenizer.encode("é 中 😀\n\t")) == "é 中 😀\n\t"


def gpt2_bytes_id(byte: int) -> int:
    return list(gpt2_bytes().values()).index(byte)


CUTS = [
    ("smollm", "don't 123", ["don", "'t", " ", "1", "2", "3"]),
    ("gpt-2", "don't 123  x", ["don", "'t", " 123", " ", " x"]),
    ("llama-bpe", "DON'T 12345  x\n\ny", ["DON", "'T", " ", "123", "45", " ", " x", "\n\n", "y"]),
    ("qwen2", "DON'T 123!\n", ["DON", "'T", " ", "1", "2", "3", "!\n"]),
    ("tekken", "helloWorld 12", ["hello", "World", " ", "1", "2"]),
]


@pytest.mark.parametrize(("pre", "text", "words"), CUTS, ids=[cut[0] for cut in CUTS])
def test_text_is_cut_as_the_named_pre_tokenizer_does(pre, text, words):
    """Merges that would join everything stop at the cuts."""
    symbols = [char for byte in text.encode() for char, value in gpt2_bytes().items() if value == byte]
    merges = [f"{''.join(symbols[a:b])} {''.join(symbols[b:c])}" for a, b, c in _spans(len(symbols))]
    metadata = byte_level(merges=list(dict.fromkeys(merges)), pre=pre, add_bos_token=False)
    assert pieces(tokenizer_from_gguf(metadata), text) == words


def _spans(length: int) -> list[tuple[int, int, int]]:
    """Every way to join two neighbouring stretches, short ones first."""
    spans = [(a, b, c) for a in range(length) for b in range(a + 1, length) for c in range(b + 1, length + 1)]
    return sorted(spans, key=lambda span: (span[2] - span[0], span))


def test_llama_takes_a_whole_word_that_is_a_token_before_any_merge():
    values = byte_level({"abc": NORMAL}, ["b c"], pre="llama-bpe", add_bos_token=False)
    assert pieces(tokenizer_from_gguf(values), "abc") == ["abc"]
    assert pieces(tokenizer_from_gguf(values | {"tokenizer.ggml.pre": "gpt-2"}), "abc") == ["a", "bc"]


def test_qwen_composes_characters_first():
    tokenizer = tokenizer_from_gguf(byte_level(pre="qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_an_unknown_pre_tokenizer_is_refused_by_name():
    with pytest.raises(ModelFileError, match=r"'jais-2'.*known are: .*smollm") as caught:
        tokenizer_from_gguf(byte_level(pre="jais-2"))
    assert all(name in str(caught.value) for name in PRE_TOKENIZERS)
    with pytest.raises(ModelFileError, match=r"pre is missing.*convert"):
        tokenizer_from_gguf(byte_level(pre=None))


# -- SentencePiece -----------------------------------------------------------------------------------------------------


def test_the_best_scored_pair_is_merged_first():
    assert pieces(tokenizer_from_gguf(sentencepiece({"a": -9, "b": -9, "c": -9, "ab": -2, "bc": -1})), "abc") == [
        "a",
        "bc",
    ]


def test_characters_that_the_vocabulary_lacks_become_bytes():
    tokenizer = tokenizer_from_gguf(sentencepiece({"a": -1, "▁": -2}))
    assert tokenizer.encode("a é") == [259, 260, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode([259, 260, 3 + 0xC3, 3 + 0xA9]) == "a é"


def test_names_of_bytes_and_of_control_tokens_are_only_text_when_typed():
    tokenizer = tokenizer_from_gguf(sentencepiece(dict.fromkeys("<>/s0xAunk", -1.0)))
    for text in ("<0x0A>", "<s>", "</s>", "<unk>"):
        assert pieces(tokenizer, text) == list(text)


def test_user_defined_tokens_are_found_before_merging_longest_first():
    values = sentencepiece({"a": -1, "▁": -2, "▁a": -3}, {"  ": USER_DEFINED, "   ": USER_DEFINED})
    assert pieces(tokenizer_from_gguf(values), "a    a") == ["a", "   ", " a"]


def test_a_space_goes_before_the_text_unless_the_file_says_no():
    scored = {"a": -1, "▁": -2, "▁a": -3}
    with_prefix = tokenizer_from_gguf(sentencepiece(scored, add_space_prefix=None))
    assert pieces(with_prefix, "a a") == [" a", " a"]
    assert with_prefix.decode(with_prefix.encode("a a")) == "a a"
    assert with_prefix.strip_leading_space
    without = tokenizer_from_gguf(sentencepiece(scored))
    assert pieces(without, "a a") == ["a", " a"]


@given(
    st.lists(st.text(alphabet="ab▁", min_size=2, max_size=5), unique=True, max_size=12),
    st.lists(st.text(alphabet="ab ", max_size=12), max_size=5),
)
@settings(deadline=None, max_examples=60)
def test_merging_by_score_equals_the_definition(words, texts):
    scored = {"a": 0.0, "b": 0.0, "▁": 0.0} | {word: -float(i) for i, word in enumerate(words, 1)}
    tokenizer = tokenizer_from_gguf(sentencepiece(scored))
    ids = {token: i for i, token in enumerate(scored)}
    for text in texts:
        symbols = list(text.replace(" ", "▁"))
        while pairs := [
            (-scored[left + right], ids[left], ids[right], i)
            for i, (left, right) in enumerate(pairwise(symbols))
            if left + right in scored
        ]:
            i = min(pairs)[3]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        assert pieces(tokenizer, text) == [symbol.replace("▁", " ") for symbol in symbols]


def test_every_way_to_make_a_token_is_a_merge():
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    ids = {token: i for i, token in enumerate(tokens)}
    assert merges_from_scores(tokens, ids, [5, 3, 4]) == [("a", "bc"), ("ab", "c"), ("a", "b"), ("b", "c")]


# -- flags and ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "add_bos"),
    [
        (byte_level(bos_token_id=0), False),
        (byte_level(bos_token_id=0, add_bos_token=True), True),
        (byte_level(bos_token_id=0, pre="llama-bpe"), True),
        (byte_level(bos_token_id=0, pre="llama-bpe", add_bos_token=False), False),
        (sentencepiece({"a": 0.0}, add_bos_token=None), True),
        (sentencepiece({"a": 0.0}), False),
    ],
)
def test_bos_is_added_as_the_file_says_else_as_its_kind_does(values, add_bos):
    tokenizer = tokenizer_from_gguf(values)
    assert tokenizer.add_bos is add_bos
    assert (tokenizer.encode("a")[0] == tokenizer.bos_token_id) is add_bos


def test_bos_that_no_token_stands_for_is_refused():
    with pytest.raises(ModelFileError, match="add_bos_token wants BOS"):
        tokenizer_from_gguf(byte_level(add_bos_token=True))


def test_all_tokens_that_end_generation_are_known():
    tokens = {"<x>": CONTROL, "<y>": CONTROL, "<|im_end|>": CONTROL, "<|eot_id|>": USER_DEFINED, "</s>": USER_DEFINED}
    values = byte_level(tokens, [], eos_token_id=256, eot_token_id=257)
    tokenizer = tokenizer_from_gguf(values)
    assert tokenizer.eos_token_id == 256
    assert tokenizer.eos_token_ids == {256, 257, 258, 259}
    assert set(tokenizer.control_tokens) == {"<x>", "<y>", "<|im_end|>", "<|eot_id|>"}
    assert tokenizer.token_bytes(260) == b"</s>"


# -- damage ------------------------------------------------------------------------------------------------------------

SHORT = np.array([1, 2], np.int32)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "tokens must be a list"),
        (byte_level() | {"tokenizer.ggml.tokens": []}, "tokens is empty"),
        (byte_level() | {"tokenizer.ggml.tokens": [1, 2]}, "tokens must be a list"),
        (byte_level() | {"tokenizer.ggml.model": "rwkv"}, "'rwkv'.*known are: gpt2, llama"),
        (metadata("gpt2", {"a": NORMAL}, merges=["a b"], pre="gpt-2"), "'a b', doesn't make"),
        (metadata("gpt2", {"a": NORMAL}, pre="gpt-2"), "merges must be a list"),
        (byte_level(token_type=SHORT), "token_type has 2 entries for 259 tokens"),
        (byte_level(token_type=np.full(259, 99)), "type that isn't one of"),
        (byte_level(token_type="x"), "token_type must be a list of numbers"),
        (byte_level(eos_token_id=259), "eos_token_id must be between 0 and 258"),
        (byte_level(bos_token_id=-1), "bos_token_id must be between"),
        (sentencepiece({"a": 0.0}, scores=None), "scores must be a list"),
        (sentencepiece({"a": 0.0}, scores=SHORT), "scores has 2 entries"),
        (sentencepiece({"a": float("nan")}), "scores must be a list of numbers"),
        (byte_level() | {"tokenizer.ggml.tokens": ["x"] * 259}, "holds 'x' twice, at 0 and 258"),
    ],
)
def test_damaged_tables_are_refused_with_their_name(values, message):
    with pytest.raises(ModelFileError, match=message):
        tokenizer_from_gguf(values)
