"""The tensor types of GGUF files: how many elements share a block, and how many bytes the block takes.

Source: the type table of ggml (``ggml.h``) and the GGUF specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GGMLType:
    name: str
    block_elements: int
    block_bytes: int
    readable: bool = True
    """Whether the values can be turned into floats here."""


GGML_TYPES = MappingProxyType(
    {
        0: GGMLType("F32", 1, 4),
        1: GGMLType("F16", 1, 2),
        2: GGMLType("Q4_0", 32, 18),
        3: GGMLType("Q4_1", 32, 20),
        6: GGMLType("Q5_0", 32, 22),
        7: GGMLType("Q5_1", 32, 24),
        8: GGMLType("Q8_0", 32, 34),
        9: GGMLType("Q8_1", 32, 40, readable=False),
        10: GGMLType("Q2_K", 256, 84),
        11: GGMLType("Q3_K", 256, 110),
        12: GGMLType("Q4_K", 256, 144),
        13: GGMLType("Q5_K", 256, 176),
        14: GGMLType("Q6_K", 256, 210),
        15: GGMLType("Q8_K", 256, 292, readable=False),
        16: GGMLType("IQ2_XXS", 256, 66),
        17: GGMLType("IQ2_XS", 256, 74),
        18: GGMLType("IQ3_XXS", 256, 98),
        19: GGMLType("IQ1_S", 256, 50),
        20: GGMLType("IQ4_NL", 32, 18),
        21: GGMLType("IQ3_S", 256, 110),
        22: GGMLType("IQ2_S", 256, 82),
        23: GGMLType("IQ4_XS", 256, 136),
        24: GGMLType("I8", 1, 1, readable=False),
        25: GGMLType("I16", 1, 2, readable=False),
        26: GGMLType("I32", 1, 4, readable=False),
        27: GGMLType("I64", 1, 8, readable=False),
        28: GGMLType("F64", 1, 8, readable=False),
        29: GGMLType("IQ1_M", 256, 56),
        30: GGMLType("BF16", 1, 2),
        34: GGMLType("TQ1_0", 256, 54),
        35: GGMLType("TQ2_0", 256, 66),
        39: GGMLType("MXFP4", 32, 17),
        # NVFP4 weights need a scale from a second tensor.
        40: GGMLType("NVFP4", 64, 36, readable=False),
    }
)
"""By the number that stands in the file."""
