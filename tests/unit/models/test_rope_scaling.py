from __future__ import annotations

import math

import pytest

from ullage.models.rope_scaling import Yarn, linear_rope, llama3_rope, yarn_attention_factor, yarn_rope
from ullage.models.spec import RopeSpec


def test_a_linear_factor_of_one_is_no_scaling():
    assert linear_rope(10_000.0, 8, 1.0) == RopeSpec(10_000.0)
    assert linear_rope(10_000.0, 8, 2.5).freq_factors == (2.5,) * 4


def test_llama_3_keeps_short_waves_and_divides_long_ones():
    """The values of Llama 3.1 (theta 500,000, head size 128), worked out from the wavelengths by hand."""
    rope = llama3_rope(500_000.0, 128, factor=8.0, low=1.0, high=4.0, original_context=8192)
    wavelengths = [2 * math.pi * 500_000 ** (2 * i / 128) for i in range(64)]
    for wavelength, divisor in zip(wavelengths, rope.freq_factors, strict=True):
        if wavelength < 8192 / 4:
            assert divisor == 1.0
        elif wavelength > 8192:
            assert divisor == 8.0
        else:
            assert 1.0 < divisor < 8.0
    assert list(rope.freq_factors) == sorted(rope.freq_factors)
    between = sum(1.0 < divisor < 8.0 for divisor in rope.freq_factors)
    assert between == sum(2048 < wavelength < 8192 for wavelength in wavelengths) == 6


def test_llama_3_passes_smoothly_between():
    """One frequency, checked with the formula written out: half way between the bounds in turns, so the mean of
    the kept and the divided frequency."""
    original_context = round(2 * math.pi * 2.5 * 1e6)
    rope = llama3_rope(1e6, 2, factor=8.0, low=1.0, high=4.0, original_context=original_context)
    assert rope.freq_factors == (1.0,)  # theta ** 0: the shortest wave
    rope = llama3_rope(1e6, 4, factor=8.0, low=1.0, high=4.0, original_context=round(2 * math.pi * 2.5 * 1e3))
    assert 1 / rope.freq_factors[1] == pytest.approx((1 + 1 / 8) / 2, rel=1e-3)


def test_yarn_ramps_between_kept_and_divided_frequencies():
    """Qwen's published setting: theta 1,000,000, head size 128, 32,768 stretched four times."""
    rope = yarn_rope(1e6, 128, Yarn(factor=4.0, original_context=32768))
    low = math.floor(128 * math.log(32768 / (32 * 2 * math.pi)) / (2 * math.log(1e6)))
    high = math.ceil(128 * math.log(32768 / (1 * 2 * math.pi)) / (2 * math.log(1e6)))
    assert (low, high) == (23, 40)
    assert rope.freq_factors[: low + 1] == (1.0,) * 24
    assert rope.freq_factors[high:] == (4.0,) * 24
    share = (30 - low) / (high - low)
    assert 1 / rope.freq_factors[30] == pytest.approx(share / 4 + (1 - share))
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_uses_the_attention_factor_that_is_given():
    assert yarn_rope(1e6, 128, Yarn(4.0, 32768, attention_factor=1.5)).attention_factor == 1.5


def test_yarn_that_shrinks_nothing_leaves_attention_alone():
    assert yarn_attention_factor(1.0) == 1.0
    assert yarn_attention_factor(0.5) == 1.0


def test_yarn_with_equal_bounds_is_a_step():
    rope = yarn_rope(1e6, 8, Yarn(4.0, original_context=7, beta_fast=1.0, beta_slow=1.0))
    assert rope.freq_factors == (1.0, 4.0, 4.0, 4.0)
