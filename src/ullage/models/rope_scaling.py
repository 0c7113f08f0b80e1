"""The ways to stretch rotary embeddings, each reduced to one divisor per frequency (see ``RopeSpec``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ullage.models.spec import RopeSpec


def linear_rope(theta: float, head_size: int, factor: float) -> RopeSpec:
    """Position interpolation: every frequency divided by ``factor``. Source: arXiv:2306.15595."""
    return RopeSpec(theta, None if factor == 1.0 else (factor,) * (head_size // 2))


def llama3_rope(
    theta: float, head_size: int, *, factor: float, low: float, high: float, original_context: int
) -> RopeSpec:
    """Long waves are divided by ``factor``, short ones kept, with a smooth passage between.

    Source: Llama 3.1's reference code. ``low`` and ``high`` say how many turns a wave makes within the original
    context: fewer than ``low`` is long, more than ``high`` short.
    """

    def divisor(index: int) -> float:
        turns = original_context / (2 * math.pi * math.pow(theta, 2 * index / head_size))
        if turns < low:
            return factor
        if turns > high:
            return 1.0
        smooth = (turns - low) / (high - low)
        return 1.0 / ((1.0 - smooth) / factor + smooth)

    return RopeSpec(theta, tuple(divisor(i) for i in range(head_size // 2)))


@dataclass(frozen=True, slots=True)
class Yarn:
    """Parameters of YaRN. Source: arXiv:2309.00071, with the defaults of its authors."""

    factor: float
    original_context: int
    beta_fast: float = 32.0
    """Waves with at least this many turns in the original context are kept."""
    beta_slow: float = 1.0
    """Waves with at most this many turns are divided by ``factor``."""
    attention_factor: float | None = None
    """None: 1 + 0.1 ln(factor)."""
    whole_bounds: bool = True
    """Widen the ramp to whole frequency indices."""


def yarn_rope(theta: float, head_size: int, yarn: Yarn) -> RopeSpec:
    """Between the two betas, interpolated and kept frequencies are mixed along a ramp over the frequency index."""

    def index_of(turns: float) -> float:
        return head_size * math.log(yarn.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index_of(yarn.beta_fast), index_of(yarn.beta_slow)
    if yarn.whole_bounds:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp, without dividing by zero

    def divisor(index: int) -> float:
        interpolated = min(max((index - low) / (high - low), 0.0), 1.0)
        return 1.0 / (interpolated / yarn.factor + 1.0 - interpolated)

    attention_factor = yarn.attention_factor
    if attention_factor is None:
        attention_factor = yarn_attention_factor(yarn.factor)
    return RopeSpec(theta, tuple(divisor(i) for i in range(head_size // 2)), attention_factor)


def yarn_attention_factor(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0
