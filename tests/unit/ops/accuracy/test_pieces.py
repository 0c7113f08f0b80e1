"""The text and how it is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.model_fixtures import tiny_model, write_gguf
from tests.random_model import small_spec

from ullage.base.errors import ConfigError
from ullage.models.open_model import open_model
from ullage.ops.accuracy.pieces import Pieces, Text, cut, read_text

SPEC = replace(small_spec(), max_position=64)
TEXT = Text(("a",), "xyz" * 10)  # 30 tokens of one letter each


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    model = open_model(write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny_model("llama")))
    yield model.tokenizer()
    model.close()


def test_the_repository_s_own_text_is_enough_without_any_file():
    text = read_text([])
    assert "LICENSE" in text.names
    assert len(text.content) > 20_000


def test_files_are_read_in_the_order_given(tmp_path):
    paths = [tmp_path / "b", tmp_path / "a"]
    paths[0].write_text("one", "utf-8")
    paths[1].write_text("二", "utf-8")
    text = read_text(paths)
    assert text.names == ("b", "a")
    assert text.content == "one\n二"
    assert text.sha256 == Text((), "one\n二").sha256 != Text((), "one\nzwei").sha256


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"can't read the text .*nowhere: No such file"):
        read_text([tmp_path / "nowhere"])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary is not text in UTF-8"):
        read_text([tmp_path / "binary"])


def test_pieces_hold_the_first_tokens_one_after_another_and_the_last_is_what_is_left(tokenizer):
    tokenizer.add_bos = False
    pieces = cut(TEXT, tokenizer, SPEC, num_rows=23, piece_rows=10)
    assert [len(piece) for piece in pieces.token_ids] == [10, 10, 3]
    joined = [token_id for piece in pieces.token_ids for token_id in piece]
    assert joined == tokenizer.encode(TEXT.content, add_special_tokens=False)[:23]
    assert (pieces.num_rows, pieces.num_text_tokens, pieces.longest) == (23, 30, 10)
    assert pieces.first_rows == [0, 10, 20]


def test_each_piece_begins_with_bos_where_the_model_wants_it_and_no_text_is_lost(tokenizer):
    tokenizer.add_bos, tokenizer.bos_token_id = True, 3
    pieces = cut(TEXT, tokenizer, SPEC, num_rows=21, piece_rows=10)
    assert [len(piece) for piece in pieces.token_ids] == [10, 10, 1]
    assert all(piece[0] == 3 for piece in pieces.token_ids)
    text = [token_id for piece in pieces.token_ids for token_id in piece[1:]]
    assert text == tokenizer.encode(TEXT.content, add_special_tokens=False)[:18]


def test_too_few_tokens_and_impossible_pieces_are_refused_with_the_figures(tokenizer):
    tokenizer.add_bos = False
    with pytest.raises(ConfigError, match="the text has 30 tokens, too few for 31") as caught:
        cut(TEXT, tokenizer, SPEC, num_rows=31, piece_rows=10)
    assert caught.value.hint == "give a longer --text, or fewer --tokens"
    with pytest.raises(ConfigError, match="pieces of 65 tokens exceed the 64"):
        cut(TEXT, tokenizer, SPEC, num_rows=30, piece_rows=65)
    tokenizer.add_bos, tokenizer.bos_token_id = True, 3
    with pytest.raises(ConfigError, match="pieces of 2 tokens are too short"):
        cut(TEXT, tokenizer, SPEC, num_rows=30, piece_rows=2)


def test_the_next_token_is_the_piece_s_own():
    pieces = Pieces(((5, 6), (7,)), 3)
    assert [pieces.next_token(0, 0), pieces.next_token(0, 1), pieces.next_token(1, 0)] == [6, None, None]
    assert pieces.sha256 != Pieces(((5,), (6, 7)), 3).sha256
