"""In which form each matrix is held (``native/formats.h`` has the bytes).

``file`` carries the blocks of a GGUF file over as they are, scale by scale, without loss; a matrix made of tensors of
different types takes the next wider form that holds them all. What isn't in such blocks becomes bf16. The other weight
types round everything from float32: ``bf16``, ``int8`` (groups of 32 with a scale) and ``int4`` (groups of 32 with
scale and minimum; the vocabulary stays at 8 bits, where 4 would cost most).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

WeightType = Literal["file", "bf16", "int8", "int4"]
WEIGHT_TYPES: tuple[WeightType, ...] = ("file", "bf16", "int8", "int4")

TILE_OUTPUTS = 32
K_MULTIPLE = 32
"""k is padded to whole groups."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    name: str
    bits: int
    group_terms: int
    """k that share a scale; 0: no scales."""
    scale_bytes: int = 0
    has_minimum: bool = False

    def tile_bytes(self, k: int) -> int:
        """Bytes of 32 outputs.

        :param k: a multiple of ``K_MULTIPLE``
        """
        numbers = TILE_OUTPUTS * k * self.bits // 8
        if not self.group_terms:
            return numbers
        return numbers + k // self.group_terms * TILE_OUTPUTS * self.scale_bytes * (1 + self.has_minimum)


FORMATS = MappingProxyType(
    {
        each.name: each
        for each in (
            WeightFormat("bf16", 16, 0),
            WeightFormat("int4", 4, 32, 2),
            WeightFormat("int4_min", 4, 32, 2, has_minimum=True),
            WeightFormat("int4_min_f32", 4, 32, 4, has_minimum=True),
            WeightFormat("int8", 8, 32, 2),
            WeightFormat("int8_min_f32", 8, 32, 4, has_minimum=True),
            WeightFormat("int8_g16", 8, 16, 4),
            WeightFormat("int8_g16_min", 8, 16, 4, has_minimum=True),
        )
    }
)

CARRIED = MappingProxyType(
    {
        "Q4_0": "int4",
        "Q4_1": "int4_min",
        "Q4_K": "int4_min_f32",
        "Q5_0": "int8",
        "Q5_1": "int8_min_f32",
        "Q5_K": "int8_min_f32",
        "Q6_K": "int8_g16",
        "Q8_0": "int8",
    }
)
"""The narrowest format that holds a GGUF type's values exactly."""


def matrix_format(weight_type: WeightType, stored_types: Iterable[str], *, is_vocabulary: bool) -> WeightFormat:
    """The form of one matrix.

    :param stored_types: the types in the file of the tensors it is made of
    :param is_vocabulary: the embedding or the output matrix
    """
    if weight_type == "file":
        carried = {CARRIED.get(stored_type) for stored_type in stored_types}
        if None in carried:
            return FORMATS["bf16"]
        names = [name for name in carried if name is not None]
        return FORMATS[names[0] if len(names) == 1 else "int8_g16_min"]
    if weight_type == "int4":
        return FORMATS["int8" if is_vocabulary else "int4_min"]
    return FORMATS[weight_type]
