from __future__ import annotations

import random

from ullage.engine.output_lengths import MEMORY, NUM_SHARES, OutputLengths


def test_half_of_the_limit_is_expected_before_anything_is_known():
    assert OutputLengths().expect(100, 0) == 50


def test_what_outputs_use_is_learned_by_the_size_of_the_limit():
    lengths = OutputLengths()
    for _ in range(100):
        lengths.learn(1000, 200)
        lengths.learn(10, 10)
    assert 200 <= lengths.expect(1000, 0) <= 210
    assert lengths.expect(10, 0) == 10


def test_what_is_expected_of_a_long_one_is_what_long_ones_became():
    lengths = OutputLengths()
    for _ in range(100):
        lengths.learn(100, 10)
        lengths.learn(100, 80)
    assert 40 <= lengths.expect(100, 0) <= 50
    assert lengths.expect(100, 11) in range(78, 81)
    assert lengths.expect(100, 85) == 100  # nobody went so far


def test_an_expectation_is_more_than_there_is_and_no_more_than_may_be():
    draw = random.Random(0)
    lengths = OutputLengths()
    for _ in range(3000):
        max_tokens = draw.randint(1, 2000)
        lengths.learn(max_tokens, draw.randint(1, max_tokens))
        num_output_tokens = draw.randrange(max_tokens)
        assert num_output_tokens < lengths.expect(max_tokens, num_output_tokens) <= max_tokens


def test_old_outputs_are_forgotten():
    lengths = OutputLengths()
    for num_output_tokens in (900, 100):
        for _ in range(5 * MEMORY):
            lengths.learn(1000, num_output_tokens)
    assert lengths.expect(1000, 0) <= 120


def test_memory_is_bounded_and_weights_never_overflow():
    lengths = OutputLengths()
    for i in range(60_000):
        lengths.learn(1 + i % 5000, 1)
    assert len(lengths._histograms) <= 13
    assert all(len(histogram) == NUM_SHARES for histogram in lengths._histograms.values())
    assert lengths._new_weight < 1e101
    assert lengths.expect(4999, 0) <= 4999 / NUM_SHARES + 20
