"""One matrix product of the native runner against the sum of its terms, with a bound on each single result.

Attention and feed-forward add nothing to the model below, so that a logit is one row of the output matrix times the
norm of one row of the embedding. Both are known exactly (read back from the arena), and so is what may be lost:

    dot products, few rows          x is rounded to whole 32512ths of its peak; weights in groups aren't rounded
    dot products otherwise          x is rounded to bf16, by a 256th at most; weights in groups too
    without dot products            weights in groups are rounded to bf16; x isn't
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.block_model import BLOCK_TYPES, SPREAD, BlockModel, block_shape, random_rows
from tests.native_runners import BYTE_ROWS, BuiltRunner, Sizes, build_native, request
from tests.packed_weights import GROUP_LAYOUTS, unpacked_tensors
from tests.random_model import small_spec

from ullage.engine.step import ScheduledStep
from ullage.kernels.native import native_isas
from ullage.kernels.weight_formats import WeightType
from ullage.models.spec import ModelSpec, RopeSpec, expected_tensors

BF16 = 2.0**-8  # largest relative error of a number rounded to bf16
FOUR_BITS = 15 / 65536  # of a scale: what a neighbour adds to a widened number of 4 bits
FLOAT_SUMS = 4e-6  # of the largest weight times the sum of all |x|: rounding of float32 sums and of the norm
ROWS = [1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17, 32, 33, 37]
SIZES = Sizes(num_blocks=40, max_tokens=40, max_seqs=40)

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """How the output matrix is held, and its size."""

    weight_type: WeightType
    stored_type: str
    k: int
    outputs: int


CASES = [
    *(Case("file", block_type, block_shape(block_type)[0] * blocks, outputs)
      for block_type in BLOCK_TYPES for blocks, outputs in ((1, 61), (3, 17))),
    *(Case(weight_type, "F32", k, outputs)
      for weight_type in ("file", "int8") for k, outputs in ((16, 5), (48, 61), (176, 33), (1040, 96))),
]  # fmt: skip


class PlainModel(BlockModel):
    """Its layers add nothing to what the embedding says."""

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        tensor = super().read_tensor(name)
        return np.zeros_like(tensor) if name.rpartition(".")[2] in ("o", "down") else tensor


def plain_spec(case: Case) -> ModelSpec:
    spec = small_spec("llama", num_layers=1, vocab_size=case.outputs)
    layers = (replace(spec.layers[0], rope=RopeSpec(theta=10_000.0)),)
    return replace(
        spec, hidden_size=case.k, intermediate_size=32, head_size=16, num_heads=1, num_kv_heads=1, layers=layers
    )


class FaintModel(PlainModel):
    """The scales of its output matrix are subnormal halves, a few dozen times the smallest."""

    def read_stored_rows(self, name: str, first: int, count: int) -> NDArray[np.uint8]:
        if name != "lm_head":
            return super().read_stored_rows(name, first, count)
        num_rows, k = expected_tensors(self.spec)[name]
        spread = 30 * 2.0**-24 * SPREAD[self.stored_type(name)]
        return random_rows(self.stored_type(name), num_rows, k, np.random.default_rng(0), spread)[first : first + count]


@cache
def built_for(case: Case, isa: str) -> tuple[PlainModel, BuiltRunner]:
    model = PlainModel(plain_spec(case), {"lm_head": case.stored_type})
    return model, build_native(model, SIZES, isa=isa, weight_type=case.weight_type)


def tokens_of(case: Case, num_rows: int) -> list[int]:
    return np.random.default_rng(num_rows).integers(0, case.outputs, num_rows).tolist()


def step_of(tokens: list[int]) -> ScheduledStep:
    """Each token the first of a request of its own."""
    return ScheduledStep(tuple(request([token], 0, 1, [[i]], request_id=i) for i, token in enumerate(tokens)))


def expected_products(model: PlainModel, built: BuiltRunner, tokens: list[int]) -> tuple[Doubles, Doubles, Doubles]:
    """Logits, and what they are made of: x ``[rows, k]`` and the output matrix ``[outputs, k]``."""
    tensors = unpacked_tensors(built.arena, built.layout, expected_tensors(model.spec))
    x = tensors["embed"][tokens].astype(np.float64)
    x /= np.sqrt(np.mean(np.square(x), axis=1, keepdims=True) + model.spec.norm_eps)
    x *= model.read_tensor("final_norm")
    matrix = tensors["lm_head"].astype(np.float64)
    return x @ matrix.T, x, matrix


def most_lost(format_name: str, isa: str, x: Doubles, matrix: Doubles) -> Doubles:
    """Bound of each logit's error, ``[rows, outputs]``."""
    sums = FLOAT_SUMS * np.outer(np.abs(x).sum(axis=1), np.abs(matrix).max(axis=1))
    in_groups = format_name in GROUP_LAYOUTS
    if in_groups and len(x) <= BYTE_ROWS.get(isa, 0):
        return sums + np.outer(np.abs(x).max(axis=1) / 32512 / 2, np.abs(matrix).sum(axis=1))
    rounded = BF16 * (in_groups + (isa in BYTE_ROWS)) * (np.abs(x) @ np.abs(matrix).T)
    if in_groups and GROUP_LAYOUTS[format_name].bits == 4:
        rounded += FOUR_BITS / 7 * np.outer(np.abs(x).sum(axis=1), np.abs(matrix).max(axis=1))  # a scale: a 7th of them
    return sums + rounded * (1 + 2 * BF16)


def worst_share(case: Case, isa: str, num_rows: int, built: BuiltRunner, model: PlainModel) -> float:
    """The largest error as a share of its bound."""
    tokens = tokens_of(case, num_rows)
    expected, x, matrix = expected_products(model, built, tokens)
    format_name = built.layout.operators[-1].matrix.format.name
    error = np.abs(built.runner.compute_logits(step_of(tokens)) - expected)
    return float(np.max(error / most_lost(format_name, isa, x, matrix)))


@pytest.mark.parametrize("isa", native_isas())
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.weight_type}-{c.stored_type}-{c.outputs}x{c.k}")
def test_every_logit_is_as_close_as_its_rounding_allows(case: Case, isa: str) -> None:
    model, built = built_for(case, isa)
    shares = {num_rows: worst_share(case, isa, num_rows, built, model) for num_rows in ROWS}
    assert max(shares.values()) <= 1, shares


@pytest.mark.parametrize("isa", native_isas())
@pytest.mark.parametrize("block_type", BLOCK_TYPES)
def test_the_smallest_scales_are_no_zeros(block_type: str, isa: str) -> None:
    case = Case("file", block_type, 256, 61)
    model = FaintModel(plain_spec(case), {"lm_head": block_type})
    built = build_native(model, SIZES, isa=isa, weight_type="file")
    for num_rows in (1, 3, 12, 33):
        assert worst_share(case, isa, num_rows, built, model) <= 1
        assert built.runner.compute_logits(step_of(tokens_of(case, num_rows))).all()
