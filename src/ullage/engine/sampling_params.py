"""How the next token of a request is chosen, and when the request ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ullage.base.errors import InvalidRequestError
from ullage.engine.constraint import Constraint

MAX_STOP_TEXTS = 16
MAX_STOP_LENGTH = 1024
"""Characters of one stop text; each costs time and memory of every request that brings it."""
MAX_TOKEN_IDS = 1024
"""Entries of ``logit_bias``, and of ``stop_token_ids``."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Checked on construction: an impossible value raises ``InvalidRequestError`` that names the field.

    Names and ranges are those of the OpenAI API where it has them, of vLLM otherwise.
    """

    max_tokens: int = 16
    """New tokens at most (the end-of-sequence token counts)."""
    temperature: float = 1.0
    """0 is greedy. Range 0..2."""
    top_p: float = 1.0
    """Smallest set of tokens whose probability reaches this. Range (0, 1]."""
    top_k: int = 0
    """Only the k most likely tokens; 0 means all."""
    min_p: float = 0.0
    """Only tokens at least this fraction as likely as the best one. Range 0..1."""
    repetition_penalty: float = 1.0
    """Divides positive, multiplies negative logits of all tokens so far. Range (0, 2]. CTRL, arXiv:1909.05858."""
    presence_penalty: float = 0.0
    """Subtracted once from logits of tokens in the output. Range -2..2."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence from logits of tokens in the output. Range -2..2."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids, at most 1,024. Each -100..100."""
    seed: int | None = None
    """None: the engine draws one. Each draw is keyed by (seed, token position): batching can't change it."""
    logprobs: int | None = None
    """None: none. k: log-probability of the chosen token and of the k best (0..20)."""
    stop: tuple[str, ...] = ()
    """Texts that end the output; they're not part of it. At most 16, of at most 1,024 characters each."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the output besides the model's own end-of-sequence ids. At most 1,024."""
    ignore_eos: bool = False
    """Go on after an end-of-sequence token."""
    min_tokens: int = 0
    """So many new tokens come before one may end the output: end of sequence, stop token or stop text."""
    constraint: Constraint | None = None
    """What the whole output must match. End of sequence comes where the text may end; ``min_tokens`` gives way where it
    must end."""
    visible_token_ids: tuple[int, ...] = ()
    """Control tokens whose names are part of the text, which they otherwise aren't. At most 1,024."""

    def __post_init__(self) -> None:
        _check_number("max_tokens", self.max_tokens, 1, math.inf, whole=True)
        _check_number("temperature", self.temperature, 0.0, 2.0)
        _check_number("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _check_number("top_k", self.top_k, 0, math.inf, whole=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, 2.0, above_low=True)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("min_tokens", self.min_tokens, 0, self.max_tokens, whole=True)
        if self.logprobs is not None:
            _check_number("logprobs", self.logprobs, 0, 20, whole=True)
        if self.seed is not None:
            _check_number("seed", self.seed, -(2**63), 2**64 - 1, whole=True)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError(f"ignore_eos must be true or false, got {self.ignore_eos!r}", param="ignore_eos")
        _check_entries("stop", self.stop, str, MAX_STOP_TEXTS)
        if not all(1 <= len(text) <= MAX_STOP_LENGTH for text in self.stop):
            raise InvalidRequestError(f"each stop text must have 1 to {MAX_STOP_LENGTH} characters", param="stop")
        _check_entries("stop_token_ids", self.stop_token_ids, int, MAX_TOKEN_IDS)
        _check_entries("visible_token_ids", self.visible_token_ids, int, MAX_TOKEN_IDS)
        if self.constraint is not None and self.ignore_eos:
            raise InvalidRequestError(
                "ignore_eos can't go with a constraint, whose text must be able to end", param="ignore_eos"
            )
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequestError("logit_bias must map token ids to numbers", param="logit_bias")
        _check_entries("logit_bias", tuple(self.logit_bias), int, MAX_TOKEN_IDS)
        for bias in self.logit_bias.values():
            _check_number("logit_bias", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _check_number(
    name: str, value: object, low: float, high: float, *, whole: bool = False, above_low: bool = False
) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise InvalidRequestError(f"{name} must be {'an int' if whole else 'a number'}, got {value!r}", param=name)
    if not (low < value <= high if above_low else low <= value <= high):  # NaN fails too
        bounds = f"above {low:g}" if above_low else f"at least {low:g}"
        bounds += f" and at most {high:g}" if high != math.inf else ""
        raise InvalidRequestError(f"{name} must be {bounds}, got {value!r}", param=name)


def _check_entries(name: str, entries: object, kind: type, most: int) -> None:
    if not isinstance(entries, tuple | list) or not all(type(entry) is kind for entry in entries):
        raise InvalidRequestError(f"{name} must hold {'ints' if kind is int else 'texts, in a tuple'}", param=name)
    if len(entries) > most:
        raise InvalidRequestError(f"{name} may have at most {most} entries, got {len(entries)}", param=name)
