"""Text in and out: what every tokenizer promises, on a vocabulary of single bytes."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from ullage.base.errors import InvalidRequestError
from ullage.models.tokenizer import Tokenizer
from ullage.models.tokenizer_parts import TokenizerParts, gpt2_bytes

CONTROL = ("<s>", "<|im_start|>", "<|im_end|>")
THINK = "<think>"
BOS = 256


def byte_tokenizer(*, add_bos: bool = False) -> Tokenizer:
    """Tokens 0..255 are the bytes, then BOS and other control tokens, then one that was merely added."""
    vocabulary = gpt2_bytes()
    vocabulary |= {name: 256 + i for i, name in enumerate((*CONTROL, THINK))}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in CONTROL])
    backend.add_tokens([AddedToken(THINK, normalized=False)])
    return Tokenizer(
        TokenizerParts(
            backend=backend,
            scheme="byte_level",
            strip_leading_space=False,
            vocab_size=len(vocabulary),
            control_tokens={name: vocabulary[name] for name in CONTROL},
            bos_token_id=BOS,
            eos_token_id=258,
            eos_token_ids=frozenset({258}),
            add_bos=add_bos,
        )
    )


def piece_tokenizer(pieces: list[str], *, space_prefix: bool) -> Tokenizer:
    """SentencePiece's way of writing, without merges."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(ids, [], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    prefix = [normalizers.Prepend("▁")] if space_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    backend.add_special_tokens(["<unk>"])
    return Tokenizer(
        TokenizerParts(
            backend=backend,
            scheme="sentencepiece",
            strip_leading_space=space_prefix,
            vocab_size=len(pieces),
            control_tokens={"<unk>": ids["<unk>"]},
            bos_token_id=None,
            eos_token_id=None,
            eos_token_ids=frozenset(),
            add_bos=False,
        )
    )


BYTES = byte_tokenizer()
TYPED = st.lists(st.one_of(st.text(max_size=5), st.sampled_from([*CONTROL, THINK, "<|", "\ufdd0", "\ufdd1"]))).map(
    "".join
)


@given(TYPED)
@settings(deadline=None)
def test_typed_text_comes_back_and_never_is_a_control_token(text):
    token_ids = BYTES.encode(text)
    assert BYTES.decode(token_ids) == text
    assert not any(BYTES.is_control(token_id) for token_id in token_ids)


@given(TYPED, TYPED)
@settings(deadline=None)
def test_escaped_text_adds_no_control_token_to_rendered_text(before, after):
    rendered = f"<|im_start|>{BYTES.escape(before)}<|im_end|>{BYTES.escape(after)}"
    token_ids = BYTES.encode_rendered(rendered)
    assert [i for i in token_ids if BYTES.is_control(i)] == [257, 258]
    assert BYTES.decode(token_ids, skip_special_tokens=False) == f"<|im_start|>{before}<|im_end|>{after}"


def test_typed_text_can_hold_an_added_token_that_is_not_control():
    assert byte_tokenizer().encode(f"a{THINK}") == [ord("a"), 259]


def test_bos_comes_once_and_only_where_the_file_wants_it():
    assert byte_tokenizer(add_bos=False).encode("a") == [97]
    tokenizer = byte_tokenizer(add_bos=True)
    assert tokenizer.encode("a") == [BOS, 97]
    assert tokenizer.encode("a", add_special_tokens=False) == [97]
    assert tokenizer.encode("") == [BOS]
    assert tokenizer.encode_rendered("a") == [BOS, 97]
    assert tokenizer.encode_rendered("<s>a") == [BOS, 97]
    assert tokenizer.encode("<s>")[0] == BOS
    assert tokenizer.encode("<s>").count(BOS) == 1


def test_half_a_surrogate_pair_is_refused():
    tokenizer = byte_tokenizer()
    with pytest.raises(InvalidRequestError, match="U\\+D83D"):
        tokenizer.encode("a\ud83d")
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode_rendered("\udc00")


def test_bytes_and_texts_of_tokens():
    tokenizer = byte_tokenizer()
    assert b"".join(map(tokenizer.token_bytes, range(256))) == bytes(range(256))
    assert tokenizer.token_bytes(258) == b""
    assert tokenizer.token_text(258) == "<|im_end|>"
    assert tokenizer.token_bytes(259) == THINK.encode()
    assert tokenizer.token_text(97) == "a"
    assert tokenizer.token_text(0xC3) == "\ufffd"


def test_padding_rows_of_the_model_have_no_text():
    tokenizer = byte_tokenizer()
    assert tokenizer.vocab_size == 260
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_text(10_000) == ""


def test_decode_shows_control_tokens_only_when_asked():
    tokenizer = byte_tokenizer()
    assert tokenizer.decode([257, 97, 258]) == "a"
    assert tokenizer.decode([257, 97, 258], skip_special_tokens=False) == "<|im_start|>a<|im_end|>"


def test_broken_characters_decode_like_python():
    data = "é😀".encode()[:-1] + b"a\xff"
    assert byte_tokenizer().decode(list(data)) == data.decode("utf-8", errors="replace")


def test_pieces_write_spaces_and_bytes_in_their_own_way():
    tokenizer = piece_tokenizer(["<unk>", "▁", "a", "<0xC3>", "<0xA9>", "▁a"], space_prefix=False)
    assert [tokenizer.token_bytes(i) for i in range(1, 6)] == [b" ", b"a", b"\xc3", b"\xa9", b" a"]
    assert tokenizer.encode("aé a") == [2, 3, 4, 1, 2]
    assert tokenizer.decode([5, 3, 4]) == " aé"


def test_a_space_that_encoding_puts_first_is_taken_away_again():
    tokenizer = piece_tokenizer(["<unk>", "▁", "a"], space_prefix=True)
    assert tokenizer.encode("a") == [1, 2]
    assert tokenizer.decode([1, 2]) == "a"
    assert tokenizer.encode(" a") == [1, 1, 2]
    assert tokenizer.decode([1, 1, 2]) == " a"
