"""Tokenizers from Hugging Face folders: small ones written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from ullage.base.errors import ModelFileError
from ullage.models.tokenizer import tokenizer_from_folder
from ullage.models.tokenizer_parts import gpt2_bytes

BOS, END, THINK = 256, 257, 258


def byte_level_backend(*, add_bos: bool = True) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(gpt2_bytes(), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<bos>"), AddedToken("<|im_end|>", normalized=True)])
    backend.add_tokens(["<think>"])
    if add_bos:
        backend.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", BOS)])
    return backend


def sentencepiece_backend(*decoder_steps: decoders.Decoder, prepend_scheme: str | None) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE({"<unk>": 0, "▁": 1, "a": 2, "<0x0A>": 3}, [], byte_fallback=True))
    if prepend_scheme:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
        backend.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence(list(decoder_steps))
    backend.add_special_tokens(["<unk>", "<x>"])
    return backend


def write(folder: Path, backend: tokenizers.Tokenizer, **configs: dict[str, Any]) -> Path:
    (folder / "tokenizer.json").write_text(backend.to_str(), "utf-8")
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config), "utf-8")
    return folder


def test_reads_vocabulary_control_tokens_and_ends(tmp_path):
    folder = write(
        tmp_path,
        byte_level_backend(),
        tokenizer_config={"bos_token": "<bos>", "eos_token": {"content": "<bos>"}},
        generation_config={"eos_token_id": [3, 4]},
        config={"eos_token_id": 5},
    )
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.vocab_size == 259
    assert dict(tokenizer.control_tokens) == {"<bos>": BOS, "<|im_end|>": END}
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == BOS
    assert tokenizer.eos_token_ids == {3, 4, 5, BOS, END}
    assert tokenizer.encode("a<think>é") == [BOS, 97, THINK, 0xC3, 0xA9]
    assert tokenizer.decode(tokenizer.encode("a<think>é")) == "a<think>é"


def test_control_tokens_are_not_typed_even_where_the_file_looks_for_them_after_normalizing(tmp_path):
    tokenizer = tokenizer_from_folder(write(tmp_path, byte_level_backend(add_bos=False)))
    assert tokenizer.encode("<|im_end|>") == list(b"<|im_end|>")
    assert tokenizer.encode_rendered("<|im_end|>") == [END]


@pytest.mark.parametrize(
    ("post_processor", "config", "add_bos"),
    [
        (True, {}, True),
        (True, {"bos_token": "<bos>"}, True),
        (True, {"bos_token": "<bos>", "add_bos_token": False}, False),
        (False, {"bos_token": "<bos>"}, False),
        (False, {"bos_token": "<bos>", "add_bos_token": True}, True),
        (False, {"bos_token": None}, False),
    ],
)
def test_bos_comes_once_by_the_flag_else_by_the_post_processor(tmp_path, post_processor, config, add_bos):
    folder = write(tmp_path, byte_level_backend(add_bos=post_processor), tokenizer_config=config)
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.encode("a") == ([BOS, 97] if add_bos else [97])
    assert tokenizer.encode_rendered("<bos>a") == [BOS, 97]


def test_truncation_and_padding_that_the_file_carries_are_dropped(tmp_path):
    backend = byte_level_backend(add_bos=False)
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert tokenizer_from_folder(write(tmp_path, backend)).encode("abc") == [97, 98, 99]


def test_fallback_bytes_and_the_first_space_follow_the_decoder(tmp_path):
    steps = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0))
    tokenizer = tokenizer_from_folder(write(tmp_path, sentencepiece_backend(*steps, prepend_scheme=None)))
    assert tokenizer.encode("a\n a") == [1, 2, 3, 1, 2]
    assert tokenizer.decode([1, 2, 3, 1, 2]) == "a\n a"
    kept = tokenizer_from_folder(write(tmp_path, sentencepiece_backend(*steps[:3], prepend_scheme=None)))
    assert kept.decode([1, 2]) == " a"


def test_a_space_goes_before_the_first_stretch_only_where_the_file_says_first(tmp_path):
    tokenizer = tokenizer_from_folder(write(tmp_path, sentencepiece_backend(prepend_scheme="first")))
    assert tokenizer.encode_rendered("a<x>a") == [1, 2, 4, 2]
    assert tokenizer.decode([1, 2]) == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "isn't valid JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "Model missing"),
        ('{"added_tokens": [{"id": 0}]}', "an entry of added_tokens isn't a token"),
        ('{"added_tokens": 7}', "added_tokens must be a list"),
        ('{"decoder": 7, "model": {"type": "BPE", "vocab": {}, "merges": []}}', "tokenizer.json: "),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": ["a b"]}}', "Token `a` out of vocabulary"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text, message):
    (tmp_path / "tokenizer.json").write_text(text, "utf-8")
    with pytest.raises(ModelFileError, match=message):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece()])
def test_a_decoder_that_is_not_known_is_refused_by_name(tmp_path, decoder):
    backend = byte_level_backend()
    backend.decoder = decoder
    with pytest.raises(ModelFileError, match=r"whose decoder is (none|WordPiece) isn't known.*known are: ByteLevel"):
        tokenizer_from_folder(write(tmp_path, backend))


def test_a_folder_without_the_file_is_refused_with_a_hint(tmp_path):
    with pytest.raises(ModelFileError, match=r"has no tokenizer\.json \(save"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"tokenizer_config": {"bos_token": "<none>"}}, "bos_token is '<none>', which tokenizer.json doesn't have"),
        ({"tokenizer_config": {"add_bos_token": True}}, "add_bos_token wants BOS"),
        ({"generation_config": {"eos_token_id": "x"}}, "eos_token_id must be a token id"),
        ({"generation_config": {"eos_token_id": [True, -1]}}, "eos_token_id must be a token id"),
    ],
)
def test_wrong_configurations_are_refused(tmp_path, configs, message):
    with pytest.raises(ModelFileError, match=message):
        tokenizer_from_folder(write(tmp_path, byte_level_backend(add_bos=False), **configs))
