"""How the next token of a request is chosen, and when the request ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ullage.base.errors import InvalidRequestError


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
    """Added to the logits of these token ids. Each -100..100."""
    seed: int | None = None
    """None: the engine draws one. Each draw is keyed by (seed, token position): batching can't change it."""
    logprobs: int | None = None
    """None: none. k: log-probability of the chosen token and of the k best (0..20)."""
    stop: tuple[str, ...] = ()
    """Texts that end the output; they're not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the output besides the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    """Go on after an end-of-sequence token."""
    min_tokens: int = 0
    """No end-of-sequence or stop token before this many new tokens."""

    def __post_init__(self) -> None:
        self._check_range("max_tokens", self.max_tokens, 1, math.inf)
        self._check_range("temperature", self.temperature, 0.0, 2.0)
        self._check_range("top_p", self.top_p, 0.0, 1.0, above_low=True)
        self._check_range("top_k", self.top_k, 0, math.inf)
        self._check_range("min_p", self.min_p, 0.0, 1.0)
        self._check_range("repetition_penalty", self.repetition_penalty, 0.0, 2.0, above_low=True)
        self._check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self._check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self._check_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.logprobs is not None:
            self._check_range("logprobs", self.logprobs, 0, 20)
        if self.seed is not None:
            self._check_range("seed", self.seed, -(2**63), 2**64 - 1)
        for bias in self.logit_bias.values():
            self._check_range("logit_bias", bias, -100.0, 100.0)
        if any(not text for text in self.stop):
            raise InvalidRequestError("stop must not contain an empty text", param="stop")

    @staticmethod
    def _check_range(name: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
        if not (low < value <= high if above_low else low <= value <= high):  # NaN fails too
            bounds = f"above {low:g}" if above_low else f"at least {low:g}"
            bounds += f" and at most {high:g}" if high != math.inf else ""
            raise InvalidRequestError(f"{name} must be {bounds}, got {value!r}", param=name)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
