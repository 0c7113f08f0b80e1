"""Small models whose weights every weight type holds exactly, runners for them, and steps that mix requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tests.native_runners import Sizes, build_native, request
from tests.random_model import RandomModel, small_spec, tables_of

from ullage.engine.native_runner import NativeRunner
from ullage.engine.step import ScheduledStep
from ullage.kernels.layout import KVType
from ullage.kernels.weight_formats import WeightType
from ullage.models.spec import ModelSpec

ROUNDED_TYPES: list[WeightType] = ["bf16", "int8", "int4"]
"""Weight types that round whatever the file holds."""

SIZES = Sizes()  # its 206 tokens are exactly the largest step below
NUM_BLOCKS = SIZES.num_blocks
GROUP_TERMS = 32  # of int8 and int4 share a scale


class ExactModel(RandomModel):
    """Matrices that bf16 and int8 hold without loss, or bf16 and int4: whole multiples of a power of two."""

    def __init__(self, spec: ModelSpec, weight_type: WeightType) -> None:
        super().__init__(spec, gain=0.8)  # keeps the softmax flat
        self._weight_type = weight_type

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        tensor = super().read_tensor(name)
        if tensor.ndim == 1:
            return tensor
        is_coarse = self._weight_type == "int4" and name not in ("embed", "lm_head")  # these stay at 8 bits
        low, high = (-8, 7) if is_coarse else (-127, 127)
        exponent = np.log2(tensor.std() * 3 / high)
        unit = np.float32(2.0 ** (np.floor(exponent) if is_coarse else np.round(exponent)))
        whole = np.clip(np.rint(tensor / unit), low, high)
        # What each group is scaled by: its peak, or its least and its largest.
        rows, groups = np.arange(len(whole))[:, None], np.arange(0, whole.shape[1], GROUP_TERMS)
        whole[rows, groups + rows % 16] = np.where(rows % 2, low, high)
        if is_coarse:
            whole[rows, groups + (rows + 1) % 16] = np.where(rows % 2, high, low)
        return whole.astype(np.float32) * unit


def spec_of(architecture: str, **changes: object) -> ModelSpec:
    """A small spec of sizes that the kernels take; an odd number of panels, tiles and heads where that is possible."""
    spec = small_spec(architecture)
    factors = tuple(1.0 + 0.25 * i for i in range(24))
    layers = [
        replace(layer, rope=replace(layer.rope, freq_factors=factors if layer.rope.freq_factors else None))
        for layer in spec.layers
    ]
    sizes = {"hidden_size": 80, "intermediate_size": 112, "head_size": 48, "num_heads": 6, "num_kv_heads": 2}
    return replace(spec, layers=tuple(layers), **(sizes | changes))


def native_runner(
    spec: ModelSpec,
    *,
    isa: str | None = None,
    weight_type: WeightType = "bf16",
    kv_type: KVType = "bf16",
    block_size: int = 16,
    threads: int = 2,
    model: RandomModel | None = None,
) -> NativeRunner:
    model = model or ExactModel(spec, weight_type)
    sizes = Sizes(block_size=block_size)
    return build_native(model, sizes, isa=isa, weight_type=weight_type, kv_type=kv_type, threads=threads).runner


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


def mixed_steps(spec: ModelSpec, block_size: int) -> list[ScheduledStep]:
    """Two prompts in chunks, decodes and a prefill together, single rows, blocks in no order.

    The long one goes beyond the 256 tokens whose scores the kernels hold at once.
    """
    long, short, other = tokens_of(290, 1), tokens_of(7, 2), tokens_of(33, 3)
    ids = np.random.default_rng(9).permutation(NUM_BLOCKS).tolist()
    num_long, num_other = -(-290 // block_size), -(-33 // block_size)
    long_blocks, short_blocks, other_blocks = (
        tables_of(spec, block_ids, NUM_BLOCKS)
        for block_ids in (ids[:num_long], ids[num_long : num_long + 1], ids[num_long + 1 : num_long + 1 + num_other])
    )
    return [
        ScheduledStep(
            (request(long, 0, 200, long_blocks, logits=False), request(short, 0, 6, short_blocks, request_id=1))
        ),
        ScheduledStep((request(short, 6, 7, short_blocks, request_id=1), request(long, 200, 289, long_blocks))),
        ScheduledStep((request(long, 289, 290, long_blocks), request(other, 0, 33, other_blocks, request_id=2))),
    ]
