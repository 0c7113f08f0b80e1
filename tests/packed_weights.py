"""Packed matrices read back, by the description of the layout in ``native/formats.h`` and by nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ullage.kernels.layout import PackedMatrix, WeightLayout

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class GroupLayout:
    """One format in groups, as the header describes it."""

    bits: int
    terms: int
    scale_type: str
    zero: int
    has_minimum: bool

    @property
    def panel_bytes(self) -> int:
        """Of the 16 outputs of a panel; eight k take one vector of 64 bytes, or two."""
        return self.terms // 8 * 64 * self.bits // 4

    @property
    def num_bytes(self) -> int:
        return 2 * self.panel_bytes + 32 * np.dtype(self.scale_type).itemsize * (1 + self.has_minimum)


GROUP_LAYOUTS = {
    "int4": GroupLayout(4, 32, "<f2", 8, False),
    "int4_min": GroupLayout(4, 32, "<f2", 0, True),
    "int4_min_f32": GroupLayout(4, 32, "<f4", 0, True),
    "int8": GroupLayout(8, 32, "<f2", 128, False),
    "int8_min_f32": GroupLayout(8, 32, "<f4", 0, True),
    "int8_g16": GroupLayout(8, 16, "<f4", 128, False),
    "int8_g16_min": GroupLayout(8, 16, "<f4", 0, True),
}


def packed_bytes(format_name: str, outputs: int, k: int) -> int:
    if format_name == "bf16":
        return 2 * outputs * k
    layout = GROUP_LAYOUTS[format_name]
    return outputs // 32 * (k // layout.terms) * layout.num_bytes


def read_packed(memory: Bytes, format_name: str, outputs: int, k: int) -> Floats:
    """``[outputs, k]``, both padded, in float32."""
    if format_name == "bf16":
        pairs = memory.view("<u2").reshape(outputs // 16, k // 2, 16, 2)
        words = pairs.transpose(0, 2, 1, 3).reshape(outputs, k).astype(np.uint32) << 16
        return words.view(np.float32)
    layout = GROUP_LAYOUTS[format_name]
    groups = memory.reshape(outputs // 32, k // layout.terms, layout.num_bytes)
    numbers = np.stack(
        [_numbers(groups[..., p * layout.panel_bytes : (p + 1) * layout.panel_bytes], layout) for p in (0, 1)], axis=2
    ).reshape(*groups.shape[:2], 32, layout.terms)
    scales, minima = read_scales(groups, layout)
    values = scales[..., None] * (numbers - np.float32(layout.zero)) + minima[..., None]  # [tile, group, output, term]
    return values.transpose(0, 2, 1, 3).reshape(outputs, k)


def read_scales(groups: Bytes, layout: GroupLayout) -> tuple[Floats, Floats]:
    """Scales and minima (zeros where there are none), each ``[tiles, groups, 32]``."""
    tail = np.ascontiguousarray(groups[..., 2 * layout.panel_bytes :]).view(layout.scale_type).astype(np.float32)
    scales = tail[..., :32]
    return scales, tail[..., 32:] if layout.has_minimum else np.zeros_like(scales)


def _numbers(panel: Bytes, layout: GroupLayout) -> Floats:
    """``[tiles, groups, 16 outputs, terms]`` of one panel."""
    words = np.ascontiguousarray(panel).view("<u4")
    words = words.reshape(*panel.shape[:2], layout.terms // 8, layout.bits // 4, 16)  # a 32-bit lane per output
    numbers = np.empty((*panel.shape[:2], layout.terms // 8, 8, 16), np.float32)
    for half in range(2):
        for j in range(4):
            vector, place = (
                (0, j) if layout.bits == 4 else (j % 2, j // 2)
            )  # k = 2 j + half = 2 (vector + 2 byte) + half
            lane = words[..., vector, :] >> np.uint32(16 * half + layout.bits * place)
            numbers[..., 2 * j + half, :] = lane & np.uint32(2**layout.bits - 1)
    return numbers.transpose(0, 1, 4, 2, 3).reshape(*panel.shape[:2], 16, layout.terms)


def read_matrix(arena: Bytes, matrix: PackedMatrix) -> Floats:
    memory = arena[matrix.offset : matrix.offset + matrix.num_bytes]
    return read_packed(memory, matrix.format.name, matrix.outputs, matrix.k)


def output_of(row: int, first_output: int, group_stride: int) -> int:
    return first_output + row // 16 * group_stride + row % 16


def unpacked_tensors(arena: Bytes, layout: WeightLayout, shapes: dict[str, tuple[int, ...]]) -> dict[str, Floats]:
    """The matrices by canonical name, as the arena holds them."""
    tensors = {}
    for matrix in layout.matrices():
        values = read_matrix(arena, matrix)
        for source in matrix.source.rows:
            num_rows, k = shapes[source.tensor]
            places = [output_of(row, source.first_output, source.group_stride) for row in range(num_rows)]
            tensors[source.tensor] = values[places, :k]
    return tensors
