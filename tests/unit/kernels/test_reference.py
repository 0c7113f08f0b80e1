"""The numpy kernels against definitions written out another way: by hand, in float64, with complex numbers or loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ullage.kernels import reference
from ullage.models.spec import RopeSpec


def random(*shape: int, seed: int = 0) -> reference.Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_linear_is_a_dot_product_per_output_plus_bias() -> None:
    x, weight, bias = random(2, 3), random(4, 3, seed=1), random(4, seed=2)
    expected = [[sum(a * b for a, b in zip(row, out, strict=True)) for out in weight] for row in x]
    np.testing.assert_allclose(reference.linear(x, weight), expected, rtol=1e-5)
    np.testing.assert_allclose(reference.linear(x, weight, bias), np.array(expected) + bias, rtol=1e-5)


def test_rms_norm_scales_the_last_axis_to_unit_mean_square() -> None:
    x = np.array([[3.0, -4.0], [0.0, 0.0]], dtype=np.float32)
    normed = reference.rms_norm(x, np.array([1.0, 10.0], dtype=np.float32), eps=1e-6)
    np.testing.assert_allclose(normed, [[3 / math.sqrt(12.5), -40 / math.sqrt(12.5)], [0, 0]], rtol=1e-5)


def test_rms_norm_of_heads_norms_each_head_alone() -> None:
    x, weight = random(2, 3, 4), random(4, seed=1)
    normed = reference.rms_norm(x, weight, eps=1e-6)
    np.testing.assert_array_equal(normed[1, 2], reference.rms_norm(x[1, 2], weight, eps=1e-6))


@pytest.mark.parametrize(
    "rope",
    [RopeSpec(theta=100.0), RopeSpec(theta=10_000.0, freq_factors=(1.0, 2.0, 4.0), attention_factor=1.25)],
    ids=["plain", "scaled"],
)
def test_rope_multiplies_each_pair_as_a_complex_number_by_its_angle(rope: RopeSpec) -> None:
    positions = np.array([0, 1, 7, 31_000])
    x = random(4, 2, 6)
    rotated = reference.apply_rope(x, *reference.rope_tables(rope, 6, positions))
    for row, position in enumerate(positions):
        for head in range(2):
            for pair in range(3):
                factor = rope.freq_factors[pair] if rope.freq_factors else 1.0
                angle = position * rope.theta ** (-2 * pair / 6) / factor
                turned = complex(x[row, head, pair], x[row, head, pair + 3]) * np.exp(1j * angle)
                turned *= rope.attention_factor
                assert rotated[row, head, pair] == pytest.approx(turned.real, abs=1e-6)
                assert rotated[row, head, pair + 3] == pytest.approx(turned.imag, abs=1e-6)


def test_rope_scores_depend_on_the_distance_alone() -> None:
    q, k = random(1, 1, 8), random(1, 1, 8, seed=1)

    def score(q_position: int, k_position: int) -> float:
        q_tables, k_tables = (
            reference.rope_tables(RopeSpec(theta=1e4), 8, np.array([p])) for p in (q_position, k_position)
        )
        return float(np.sum(reference.apply_rope(q, *q_tables) * reference.apply_rope(k, *k_tables)))

    assert score(9, 4) == pytest.approx(score(1009, 1004), abs=1e-5)


def test_silu_and_gelu_match_their_definitions_and_never_overflow() -> None:
    x = np.array([-1000.0, -3.0, -0.5, 0.0, 0.5, 3.0, 1000.0], dtype=np.float32)
    silu = [v / (1 + math.exp(-v)) if v > -700 else 0.0 for v in x.tolist()]
    gelu = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    np.testing.assert_allclose(reference.silu(x), silu, rtol=1e-5)
    np.testing.assert_allclose(reference.gelu_tanh(x), gelu, rtol=1e-4)
    np.testing.assert_array_equal(reference.gated_product(x, 2 * x, "silu"), reference.silu(x) * 2 * x)
    np.testing.assert_array_equal(reference.gated_product(x, 2 * x, "gelu_tanh"), reference.gelu_tanh(x) * 2 * x)


def test_softmax_sums_to_one_and_gives_minus_infinity_nothing() -> None:
    x = np.array([[1000.0, 999.0, -np.inf], [0.0, 0.0, 0.0]], dtype=np.float32)
    e = math.exp(-1)
    np.testing.assert_allclose(reference.softmax(x), [[1 / (1 + e), e / (1 + e), 0], [1 / 3] * 3], rtol=1e-6)
    log = reference.log_softmax(x)
    assert log.dtype == np.float32
    np.testing.assert_allclose(log, [[-math.log(1 + e), -1 - math.log(1 + e), -np.inf], [-math.log(3)] * 3], rtol=1e-6)


def test_token_slots_follow_the_block_table() -> None:
    blocks, offsets = reference.token_slots([7, 2, 5], np.array([0, 3, 4, 6, 11]), block_size=4)
    assert blocks.tolist() == [7, 7, 2, 2, 5]
    assert offsets.tolist() == [0, 3, 0, 2, 3]


def attention_by_loops(
    queries: reference.Floats,
    keys: reference.Floats,
    values: reference.Floats,
    first_position: int,
    scale: float,
    window: int | None,
) -> np.ndarray:
    """:param keys: [tokens, kv_heads, head_size], as ``values``: contiguous, no blocks"""
    num_rows, num_heads, _ = queries.shape
    group = num_heads // keys.shape[1]
    output = np.zeros(queries.shape, dtype=np.float64)
    for row in range(num_rows):
        position = first_position + row
        seen = [p for p in range(position + 1) if window is None or p > position - window]
        for head in range(num_heads):
            scores = [float(np.dot(queries[row, head], keys[p, head // group])) * scale for p in seen]
            weights = [math.exp(s - max(scores)) for s in scores]
            for weight, p in zip(weights, seen, strict=True):
                output[row, head] += weight / sum(weights) * values[p, head // group].astype(np.float64)
    return output


@pytest.mark.parametrize("window", [None, 1, 5, 1000])
@pytest.mark.parametrize(("first_position", "num_rows"), [(0, 1), (0, 9), (10, 1), (6, 5), (3, 150)])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_paged_attention_matches_plain_attention(
    window: int | None, first_position: int, num_rows: int, block_size: int
) -> None:
    num_tokens = first_position + num_rows
    num_blocks = -(-num_tokens // block_size) + 3
    queries = random(num_rows, 6, 8)
    # Stray values in every slot that isn't the request's own: reading one would show.
    key_blocks, value_blocks = np.full((2, num_blocks, block_size, 2, 8), 1e3, dtype=np.float32)
    keys, values = random(num_tokens, 2, 8, seed=1), random(num_tokens, 2, 8, seed=2)
    block_ids = np.random.default_rng(3).permutation(num_blocks)[: -(-num_tokens // block_size)]
    for p in range(num_tokens):
        key_blocks[block_ids[p // block_size], p % block_size] = keys[p]
        value_blocks[block_ids[p // block_size], p % block_size] = values[p]

    output = reference.paged_attention(
        queries, key_blocks, value_blocks, block_ids.tolist(), first_position=first_position, scale=0.3, window=window
    )
    expected = attention_by_loops(queries, keys, values, first_position, 0.3, window)
    np.testing.assert_allclose(output, expected, atol=2e-6)
