from __future__ import annotations

import math

import pytest
from tests.scripted_engine import EOS, ByteTokenizer

from ullage.engine.client import TokenLogprob
from ullage.service.logprobs import CompletionLogprobsWriter, chat_logprobs, token_name

FISH = "a鱼b".encode()


def tokens(token_ids, top=()):
    return [TokenLogprob(token_id, -0.5, tuple(top)) for token_id in token_ids]


def test_bytes_of_all_tokens_join_to_the_text():
    content = chat_logprobs(tokens([*FISH, EOS]), ByteTokenizer())["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]) == FISH


def test_a_part_of_a_character_is_named_by_its_bytes():
    assert token_name(FISH[1], ByteTokenizer()) == "bytes:\\xe9"
    assert token_name(EOS, ByteTokenizer()) == "<eos>"
    assert token_name(ord("a"), ByteTokenizer()) == "a"


def test_the_best_tokens_come_as_they_are_ranked():
    (entry,) = chat_logprobs(tokens([97], [(98, -0.1), (97, -0.5)]), ByteTokenizer())["content"]
    assert [top["token"] for top in entry["top_logprobs"]] == ["b", "a"]


def test_infinity_becomes_the_number_that_the_api_has_for_it():
    token = TokenLogprob(97, -math.inf, ((98, -math.inf),))
    (entry,) = chat_logprobs([token], ByteTokenizer())["content"]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)


def test_offsets_count_characters_across_pieces():
    writer = CompletionLogprobsWriter(ByteTokenizer(), [1])
    offsets = [offset for token_id in FISH for offset in writer.write(tokens([token_id]))["text_offset"]]
    assert offsets == [0, 1, 1, 1, 2]


@pytest.mark.parametrize(("prompt", "offsets"), [([97, EOS], [0, 0, 1, 2]), ([97], [0, 1, 2, 3]), ([], [0, 0, 1, 2])])
def test_offsets_leave_out_a_space_that_the_text_leaves_out(prompt, offsets):
    class Spaced(ByteTokenizer):
        strip_leading_space = True

    writer = CompletionLogprobsWriter(Spaced(), prompt)
    assert writer.write(tokens(b" a b"))["text_offset"] == offsets
    assert writer.write(tokens(b"c"))["text_offset"] == [offsets[-1] + 1]


def test_the_chosen_token_is_among_the_best_and_only_once():
    writer = CompletionLogprobsWriter(ByteTokenizer(), [1])
    (top,) = writer.write(tokens([97], [(98, -0.1), (99, -0.2)]))["top_logprobs"]
    assert top == {"b": -0.1, "c": -0.2, "a": -0.5}
    (top,) = writer.write(tokens([97], [(97, -0.5)]))["top_logprobs"]
    assert top == {"a": -0.5}


def test_tokens_that_print_alike_stay_two():
    class Alike(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return b"x"

    (top,) = CompletionLogprobsWriter(Alike(), [1]).write(tokens([1], [(2, -0.1)]))["top_logprobs"]
    assert top == {"x": -0.1, "token_id:1": -0.5}
