"""Figures that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ullage.base.errors import EngineError
from ullage.ops.accuracy.divergence import DivergenceTally, kl_divergence, log_probabilities


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def of_probabilities(*values: float) -> np.ndarray:
    return np.log(np.array(values))


def test_log_probabilities_are_those_of_softmax_however_large_the_logits():
    assert log_probabilities(logits(0, math.log(3))) == pytest.approx(np.log([0.25, 0.75]), abs=1e-7)
    assert log_probabilities(logits(10_000, 10_000)) == pytest.approx(np.log([0.5, 0.5]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_no_number_is_an_error(value):
    with pytest.raises(EngineError, match="NaN or infinite"):
        log_probabilities(logits(0, value))


def test_divergence_of_two_coins():
    # 1/2 ln(1/2 / 1/4) + 1/2 ln(1/2 / 3/4) = ln 2 - 1/2 ln 3
    divergence = kl_divergence(of_probabilities(0.5, 0.5), of_probabilities(0.25, 0.75))
    assert divergence == pytest.approx(math.log(2) - math.log(3) / 2)
    # and the other way round 1/4 ln 1/2 + 3/4 ln 3/2: the reference is the one that weighs
    divergence = kl_divergence(of_probabilities(0.25, 0.75), of_probabilities(0.5, 0.5))
    assert divergence == pytest.approx(0.75 * math.log(3) - math.log(2))


def test_divergence_of_a_small_disturbance_is_half_its_variance():
    values = np.random.default_rng(0).standard_normal(1000)
    noise = np.random.default_rng(1).standard_normal(1000) * 1e-4
    reference, disturbed = log_probabilities(values), log_probabilities(values + noise)
    p = np.exp(reference)
    variance = p @ noise**2 - (p @ noise) ** 2
    assert kl_divergence(reference, disturbed) == pytest.approx(variance / 2, rel=1e-3)


def test_the_same_logits_give_exactly_nothing():
    tally = DivergenceTally()
    for row in np.random.default_rng(0).standard_normal((20, 50)).astype(np.float32):
        tally.add(row, row.copy(), 7)
    summary = tally.summary()
    assert (summary.mean_divergence, summary.p99_divergence, summary.max_divergence) == (0, 0, 0)
    assert summary.top1_agreement == 1
    assert summary.perplexity == summary.reference_perplexity
    assert summary.num_positions == 20


def test_mean_percentile_and_maximum_over_positions():
    tally, even = DivergenceTally(), logits(0, 0)
    for i in range(101):  # the divergence of (1/2, 1/2) from the softmax of (0, x) is ln((1 + e^x)/2) - x/2
        tally.add(even, logits(0, i), 0)
    expected = [math.log((1 + math.exp(i)) / 2) - i / 2 for i in range(101)]
    summary = tally.summary()
    assert summary.mean_divergence == pytest.approx(sum(expected) / 101)
    assert summary.p99_divergence == pytest.approx(expected[99])
    assert summary.max_divergence == pytest.approx(expected[100])


def test_agreement_counts_equal_top_tokens():
    tally, reference = DivergenceTally(), logits(0, 1, 0)
    for other in (logits(0, 5, 0), logits(2, 1, 0), logits(0, 1, 0.9), logits(0, 1, 3)):
        tally.add(reference, other, 0)
    assert tally.summary().top1_agreement == 0.5


def test_perplexity_of_a_fair_die_is_its_sides_and_positions_without_a_next_token_are_left_out():
    tally = DivergenceTally()
    tally.add(logits(0, 0, 0, 0, 0, 0), logits(0, math.log(5), 0, 0, 0, 0), 1)
    tally.add(logits(0, 0, 0, 0, 0, 0), logits(0, 30, 0, 0, 0, 0), None)
    summary = tally.summary()
    assert summary.reference_perplexity == pytest.approx(6)
    assert summary.perplexity == pytest.approx(2)  # the token had 5 of 10
    assert summary.num_positions == 2


def test_another_vocabulary_is_an_error():
    with pytest.raises(EngineError, match="3 logits, but the reference has 2"):
        DivergenceTally().add(logits(0, 0), logits(0, 0, 0), 0)
