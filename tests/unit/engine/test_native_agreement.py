"""The native runner against the numpy specification, on every instruction set of this processor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from tests.exact_models import ROUNDED_TYPES, ExactModel, mixed_steps, native_runner, spec_of
from tests.native_runners import BYTE_ROWS, Sizes, build_numpy
from tests.random_model import RandomModel

from ullage.engine.step import SampledToken
from ullage.kernels.layout import KV_TYPES, KVType
from ullage.kernels.native import native_isas
from ullage.kernels.weight_formats import WeightType
from ullage.models.spec import ModelSpec, RopeSpec

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]
MOST_NATS = 0.03  # keys and values are rounded to bf16; a misplaced value costs far more
MOST_NATS_BF16_DOT = 0.06  # activations too, of all weight types where many rows share the weights
MOST_NATS_INT4_DOT = 0.09  # as before, and a neighbour's 4 bits leave up to a 4000th of a scale in a widened weight
MOST_NATS_INT8_KV = 0.2  # keys and values are rounded to a 254th of twice a head's peak, bf16 to a 256th of each
MOST_NATS_ROUNDED: dict[WeightType, float] = {"bf16": 0.08, "int8": 0.2, "int4": 2.8}  # weights too
"""int4 is allowed 14 times what int8 is: its step is a 15th of a group's range, the other's about a 254th."""


def model_of(spec: ModelSpec, exact_for: WeightType | None) -> RandomModel:
    return RandomModel(spec, gain=0.8) if exact_for is None else ExactModel(spec, exact_for)


@cache
def numpy_answers(spec: ModelSpec, block_size: int, exact_for: WeightType | None) -> list[list[SampledToken]]:
    """Worked out once for all instruction sets."""
    runner = build_numpy(model_of(spec, exact_for), Sizes(block_size=block_size))
    return [runner.execute(step) for step in mixed_steps(spec, block_size)]


def largest_difference(
    spec: ModelSpec,
    isa: str,
    weight_type: WeightType,
    kv_type: KVType = "bf16",
    *,
    block_size: int = 16,
    exact: bool = True,
) -> float:
    """Largest difference of any log-probability that both runners give, in nats."""
    exact_for = weight_type if exact else None
    runner = native_runner(
        spec,
        isa=isa,
        weight_type=weight_type,
        kv_type=kv_type,
        block_size=block_size,
        model=model_of(spec, exact_for),
    )
    expected_answers = numpy_answers(spec, block_size, exact_for)
    worst = 0.0
    for step, answers in zip(mixed_steps(spec, block_size), expected_answers, strict=True):
        for ours, theirs in zip(runner.execute(step), answers, strict=True):
            expected = dict(theirs.top_logprobs)
            shared = [(expected[token], logprob) for token, logprob in ours.top_logprobs if token in expected]
            assert len(shared) >= 15
            worst = max(worst, *(abs(a - b) for a, b in shared))
    return worst


def most_nats(isa: str, weight_type: WeightType, kv_type: KVType = "bf16") -> float:
    most = {"bf16": MOST_NATS_BF16_DOT, "int8": MOST_NATS_BF16_DOT, "int4": MOST_NATS_INT4_DOT}[weight_type]
    most = most if isa in BYTE_ROWS else MOST_NATS
    return most if kv_type == "bf16" else MOST_NATS_INT8_KV


every_kernel = pytest.mark.parametrize(("isa", "weight_type"), list(product(native_isas(), ROUNDED_TYPES)))


@every_kernel
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_every_architecture_agrees_with_numpy(
    architecture: str, isa: str, weight_type: WeightType, kv_type: KVType
) -> None:
    difference = largest_difference(spec_of(architecture), isa, weight_type, kv_type)
    assert difference < most_nats(isa, weight_type, kv_type)


@every_kernel
def test_weights_of_any_value_agree_within_their_rounding(isa: str, weight_type: WeightType) -> None:
    difference = largest_difference(spec_of("gemma3"), isa, weight_type, exact=False)
    assert difference < MOST_NATS_ROUNDED[weight_type]


@every_kernel
@pytest.mark.parametrize("block_size", [32, 48, 256])
def test_any_block_size_agrees_with_numpy(block_size: int, isa: str, weight_type: WeightType) -> None:
    spec = spec_of("gemma3")
    assert largest_difference(spec, isa, weight_type, block_size=block_size) < most_nats(isa, weight_type)


@every_kernel
@pytest.mark.parametrize(
    "changes",
    [
        {"num_heads": 1, "num_kv_heads": 1, "head_size": 16},
        {"num_heads": 26, "num_kv_heads": 1, "head_size": 16},
        {"num_heads": 2, "num_kv_heads": 2, "head_size": 256},
        {"hidden_size": 16, "intermediate_size": 16},
        {"vocab_size": 64},
    ],
    ids=["one head", "more heads in a group than rows", "largest heads", "smallest sizes", "whole tiles"],
)
def test_odd_shapes_agree_with_numpy(changes: dict[str, int], isa: str, weight_type: WeightType) -> None:
    spec = spec_of("llama", **changes)
    plain = tuple(replace(layer, rope=RopeSpec(theta=10_000.0)) for layer in spec.layers)
    assert largest_difference(replace(spec, layers=plain), isa, weight_type) < most_nats(isa, weight_type)
