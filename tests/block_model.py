"""Random blocks of GGUF types, and a model whose matrices are made of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from tests.random_model import RandomModel

from ullage.models.spec import ModelSpec, expected_tensors

BLOCK_TYPES = ("Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0")

SCALE_AT = {"Q6_K": 208}
"""Byte of a block's half-precision scale; 0 for the others."""
MINIMUM_AT = {"Q4_1": 2, "Q4_K": 2, "Q5_1": 2, "Q5_K": 2}
SPREAD = {"Q4_0": 4.6, "Q4_1": 4.6, "Q4_K": 170, "Q5_0": 9.2, "Q5_1": 9.2, "Q5_K": 340, "Q6_K": 1360, "Q8_0": 74}
"""Standard deviation of a block of random bits whose scale is 1 (and whose minimum is ``CENTRE``)."""
CENTRE = {"Q4_1": -7.5, "Q4_K": 7.5, "Q5_1": -15.5, "Q5_K": 15.5}
"""The minimum that leaves the mean at 0, for a scale of 1; K types take their minimum off."""


def block_shape(block_type: str) -> tuple[int, int]:
    """Elements and bytes of a block."""
    return GGML_QUANT_SIZES[GGMLQuantizationType[block_type]]


def dequantized(block_type: str, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What gguf makes of stored rows: ``[rows, k]``."""
    return dequantize(rows, GGMLQuantizationType[block_type])


def random_bits(block_type: str, num_rows: int, k: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Stored rows of random bits but zero scales and minima: ``[rows, blocks, bytes]``, see ``set_half``."""
    elements, num_bytes = block_shape(block_type)
    assert k % elements == 0
    blocks = rng.integers(0, 256, (num_rows, k // elements, num_bytes), np.uint8)
    for at in half_places(block_type):
        blocks[..., at : at + 2] = 0
    return blocks


def half_places(block_type: str) -> list[int]:
    """Bytes of a block where half-precision numbers begin: the scale, then the minimum."""
    return [SCALE_AT.get(block_type, 0), *([MINIMUM_AT[block_type]] if block_type in MINIMUM_AT else [])]


def set_half(blocks: NDArray[np.uint8], at: int, values: NDArray[np.floating]) -> None:
    """:param values: one per block"""
    blocks[..., at : at + 2] = values.astype("<f2")[..., None].view(np.uint8)


def random_rows(block_type: str, num_rows: int, k: int, rng: np.random.Generator, spread: float) -> NDArray[np.uint8]:
    """Stored rows, ``[rows, bytes of a row]``, whose values have a mean of about 0 and this standard deviation."""
    blocks = random_bits(block_type, num_rows, k, rng)
    scales = (
        spread / SPREAD[block_type] * rng.uniform(0.5, 1.5, blocks.shape[:2]) * rng.choice([-1, 1], blocks.shape[:2])
    )
    places = half_places(block_type)
    set_half(blocks, places[0], scales)
    if len(places) > 1:
        set_half(blocks, places[1], scales * CENTRE[block_type] * rng.uniform(0.9, 1.1, scales.shape))
    return blocks.reshape(num_rows, -1)


class BlockModel(RandomModel):
    """Matrices in blocks of the type that the tensor's last name has in ``types``, of ``F32`` where it has none."""

    def __init__(self, spec: ModelSpec, types: Mapping[str, str], seed: int = 0, *, gain: float = 0.8) -> None:
        super().__init__(spec, seed, gain=gain)
        self._types = types

    def stored_type(self, name: str) -> str:
        return self._types.get(name.rpartition(".")[2], "F32")

    def read_stored_rows(self, name: str, first: int, count: int) -> NDArray[np.uint8]:
        num_rows, k = expected_tensors(self.spec)[name]
        gain = 2.0 if name in ("embed", "lm_head") else self._gain
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        return random_rows(self.stored_type(name), num_rows, k, rng, gain / k**0.5)[first : first + count]

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        if self.stored_type(name) == "F32":
            return super().read_tensor(name)
        return dequantized(self.stored_type(name), self.read_stored_rows(name, 0, expected_tensors(self.spec)[name][0]))
