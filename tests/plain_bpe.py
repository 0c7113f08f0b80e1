"""Byte-level BPE as published for SmolLM2, in plain Python from the vocabulary of a GGUF file: each digit on its own,
then GPT-2's pattern, then merges by rank. Shares no code with ours nor with the library that ours runs on."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from pathlib import Path

import regex
from gguf import GGUFReader
from tests.model_fixtures import byte_symbols

WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


class PlainBPE:
    def __init__(self, path: Path) -> None:
        fields = GGUFReader(path).fields
        assert fields["tokenizer.ggml.pre"].contents() == "smollm"
        tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
        merges: list[str] = fields["tokenizer.ggml.merges"].contents()
        self._ids = {token: token_id for token_id, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._symbols = byte_symbols()
        self.missing = {byte for byte in range(256) if self._symbols[byte] not in self._ids}
        """Bytes that the vocabulary has no token for: they are left out, before anything is merged."""

    def encode(self, text: str) -> list[int]:
        return [i for part in _digits_apart(text) for word in WORDS.findall(part) for i in self._encode_word(word)]

    def _encode_word(self, word: str) -> list[int]:
        parts = [self._symbols[byte] for byte in word.encode() if byte not in self.missing]
        while len(parts) > 1:
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in pairwise(parts)]
            best = min(ranks)
            if best == len(self._ranks):
                break
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._ids[part] for part in parts]


def _digits_apart(text: str) -> list[str]:
    parts = [""]
    for char in text:
        if unicodedata.category(char).startswith("N"):
            parts += [char, ""]
        else:
            parts[-1] += char
    return [part for part in parts if part]
