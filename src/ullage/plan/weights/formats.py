"""Bytes of a matrix in the formats that quantised checkpoints use, scales and zero points included."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.base.errors import ConfigError

NVFP4_GROUP = 16
MXFP4_GROUP = 32
NF4_BLOCK = 64
NF4_NESTED = 256
"""bitsandbytes: an absolute maximum per 64 values; nested, those are bytes with an f32 per 256 of them."""
TENSOR_SCALE = 4


def _groups(size: int, group: int) -> int:
    """Groups that cover ``size``, the last one perhaps in part."""
    return -(-size // group)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a matrix is kept.

    :ivar bits: of a value
    :ivar group: inputs that share a scale; 0: the whole row does
    :ivar scale_bytes: of a scale
    :ivar rows_per_scale: outputs that share a scale (blocks of fp8); 0: all of them, one scale for the tensor
    :ivar zero_points: whether each group has a zero point of as many bits as a value
    :ivar extra_per_input: bytes per input (GPTQ's order of inputs)
    :ivar extra: bytes per tensor (a second scale, or that of the inputs)
    """

    bits: int
    group: int = 0
    scale_bytes: int = 0
    rows_per_scale: int = 1
    zero_points: bool = False
    extra_per_input: int = 0
    extra: int = 0

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of ``rows`` outputs and ``columns`` inputs."""
        per_row = _groups(columns, self.group) if self.group else 1
        scales = (_groups(rows, self.rows_per_scale) if self.rows_per_scale else 1) * per_row
        zeros = _groups(rows * per_row * self.bits, 8) if self.zero_points else 0
        values = _groups(rows * columns * self.bits, 8)
        return values + scales * self.scale_bytes + zeros + columns * self.extra_per_input + self.extra


FP8_PER_TENSOR = WeightFormat(8, scale_bytes=4, rows_per_scale=0, extra=TENSOR_SCALE)
FP8_PER_ROW = WeightFormat(8, scale_bytes=4)
INT8_PER_ROW = WeightFormat(8, scale_bytes=4)
NVFP4 = WeightFormat(4, group=NVFP4_GROUP, scale_bytes=1, extra=2 * TENSOR_SCALE)
MXFP4 = WeightFormat(4, group=MXFP4_GROUP, scale_bytes=1)


def fp8_in_blocks(block_rows: int, block_columns: int) -> WeightFormat:
    """fp8 with an f32 scale per block (DeepSeek V3)."""
    return WeightFormat(8, group=block_columns, scale_bytes=4, rows_per_scale=block_rows)


def awq(bits: int, group: int, *, zero_points: bool = True) -> WeightFormat:
    """Values, fp16 scales and zero points per group of inputs."""
    return WeightFormat(bits, group=group, scale_bytes=2, zero_points=zero_points)


def gptq(bits: int, group: int) -> WeightFormat:
    """As AWQ, with zero points even where they are all alike, and the group of each input in four bytes."""
    return WeightFormat(bits, group=group, scale_bytes=2, zero_points=True, extra_per_input=4)


@dataclass(frozen=True, slots=True)
class Nf4:
    """bitsandbytes in four bits: blocks over the flattened matrix.

    :ivar nested: whether the blocks' maxima are quantised in turn (double quantisation)
    """

    nested: bool

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix; its table of 16 values and the nested offset are part of it."""
        blocks = _groups(rows * columns, NF4_BLOCK)
        maxima = blocks + 4 * _groups(blocks, NF4_NESTED) + 4 * 256 + 4 if self.nested else 4 * blocks
        return _groups(rows * columns, 2) + maxima + 16 * 4


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A GGML type of a GGUF file: blocks of values with their scales, row by row.

    :ivar block: values in a block
    :ivar block_bytes: bytes of a block
    """

    block: int
    block_bytes: int

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """:raises ConfigError: rows that don't fill whole blocks"""
        if columns % self.block:
            raise ConfigError(f"a row of {columns} values doesn't fill blocks of {self.block}")
        return rows * (columns // self.block) * self.block_bytes


def ggml_type(name: str) -> GgmlType:
    """A type by its name, like ``q4_k``.

    :raises ConfigError: an unknown type
    """
    from gguf.constants import GGML_QUANT_SIZES

    sizes = {kind.name.lower(): size for kind, size in GGML_QUANT_SIZES.items()}
    if name.lower() not in sizes:
        raise ConfigError(f"{name!r} is no GGML type", hint="known are " + ", ".join(sizes))
    return GgmlType(*sizes[name.lower()])


AnyFormat = WeightFormat | Nf4 | GgmlType
