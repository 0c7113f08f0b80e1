"""What a tokenizer is made of, whichever file it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import tokenizers

PieceScheme = Literal["byte_level", "sentencepiece"]
"""How a vocabulary writes bytes as text. ``byte_level``: one printable character for each byte (GPT-2).
``sentencepiece``: plain text with U+2581 for a space, and ``<0xAB>`` for a byte that is no character of its own."""

SPACE_SYMBOL = "\u2581"

END_OF_GENERATION_NAMES = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|END_OF_TURN_TOKEN|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "<EOT>",
        "[EOS]",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
    }
)
"""Tokens that end a turn by their name alone: files often declare only one of them. ``</s>`` isn't here, as some
vocabularies hold it as the HTML tag; where it does end the text, files declare it."""


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Everything ``Tokenizer`` needs to know."""

    backend: tokenizers.Tokenizer
    """Recognises control tokens in text; adds none."""
    scheme: PieceScheme
    strip_leading_space: bool
    """Encoding puts a space before the text, so decoding takes one away."""
    vocab_size: int
    """Highest token id + 1."""
    control_tokens: Mapping[str, int]
    bos_token_id: int | None
    eos_token_id: int | None
    """The one that chat templates call ``eos_token``."""
    eos_token_ids: frozenset[int]
    add_bos: bool


def gpt2_bytes() -> dict[str, int]:
    """Character → byte of the byte-level scheme: bytes that are printable in Latin-1 stand for themselves, the others
    are U+0100, U+0101, … in order. Source: GPT-2's ``encoder.py``.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
