"""The formulas, against sums made by hand."""

from __future__ import annotations

import pytest
from tests.random_model import small_spec

from ullage.models.spec import expected_tensors
from ullage.ops.bench.roofline import Machine, ModelCosts, costs_of, decode_step, limit_of, prefill
from ullage.ops.bench.scenario import Point

MACHINE = Machine(read_bytes_per_second=1000.0, operations_per_second=10_000.0)
COSTS = ModelCosts(
    layer_parameters=100, head_parameters=50, weight_bytes=600, token_bytes=2.0, q_size=5, windows=(None, 4)
)


def point(kind, num_sequences=1, prompt_tokens=10, new_tokens=4):
    return Point("p", "p", kind, num_sequences, prompt_tokens, new_tokens, 1, None)


def test_a_decode_step_reads_all_weights_and_what_each_sequence_sees():
    limit = decode_step(COSTS, MACHINE, 3, context=10)
    # 600 of weights, and for each of 3 sequences 2 bytes for 10 tokens in the full layer and 4 in the window
    assert limit.memory_seconds == pytest.approx((600 + 3 * 2 * (10 + 4)) / 1000)
    # 2 x 150 weights and 4 x 5 for each token seen
    assert limit.compute_seconds == pytest.approx(3 * (2 * 150 + 20 * 14) / 10_000)
    assert limit.bound == "memory"
    assert limit.seconds == limit.memory_seconds


def test_many_sequences_are_bound_by_compute():
    assert decode_step(COSTS, Machine(1000.0, 100.0), 3, context=10).bound == "compute"


def test_prefill_counts_causal_attention_and_the_head_once():
    limit = prefill(COSTS, MACHINE, [6], chunk_tokens=4)
    seen = (1 + 2 + 3 + 4 + 5 + 6) + (1 + 2 + 3 + 4 + 4 + 4)
    assert limit.compute_seconds == pytest.approx((2 * 100 * 6 + 2 * 50 + 20 * seen) / 10_000)
    assert limit.memory_seconds == pytest.approx(2 * 600 / 1000)  # two chunks


def test_the_limit_of_a_point_is_in_its_unit():
    step = decode_step(COSTS, MACHINE, 2, context=12)
    assert limit_of(point("decode", 2), COSTS, MACHINE, 512) == (pytest.approx(2 / step.seconds), "memory")
    whole = prefill(COSTS, MACHINE, [10, 10], 512).seconds + 3 * step.seconds
    rate, _ = limit_of(point("throughput", 2), COSTS, MACHINE, 512)
    assert rate == pytest.approx(2 * 4 / whole)
    rate, _ = limit_of(point("prefill"), COSTS, MACHINE, 512)
    assert rate == pytest.approx(10 / prefill(COSTS, MACHINE, [10], 512).seconds)
    assert limit_of(point("start"), COSTS, MACHINE, 512) is None


def test_costs_follow_from_the_spec():
    spec = small_spec("gemma3")
    costs = costs_of(spec, weight_bytes=1000, token_bytes=300)
    shapes = expected_tensors(spec)
    layer = sum(a * b for name, (a, b) in _matrices(shapes).items() if name.startswith("layers.0."))
    assert costs.layer_parameters == spec.num_layers * layer
    assert costs.head_parameters == spec.vocab_size * spec.hidden_size
    assert costs.weight_bytes == 1000
    assert costs.token_bytes == 300 / spec.num_layers
    assert costs.windows == (5, 5, None)


def test_an_embedding_that_is_not_the_output_matrix_is_not_read():
    spec = small_spec("llama")
    assert not spec.tied_embeddings
    sizes = {name: a * b for name, (a, b) in _matrices(expected_tensors(spec)).items()}
    costs = costs_of(spec, weight_bytes=2 * sum(sizes.values()), token_bytes=300)
    assert costs.weight_bytes == 2 * (sum(sizes.values()) - sizes["embed"])


def _matrices(shapes):
    return {name: shape for name, shape in shapes.items() if len(shape) == 2}
