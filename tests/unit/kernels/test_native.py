"""Packing: what the kernels hold is what the file holds, read back by the description of the layout."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.block_model import (
    BLOCK_TYPES,
    BlockModel,
    block_shape,
    dequantized,
    half_places,
    random_bits,
    random_rows,
    set_half,
)
from tests.packed_weights import output_of, packed_bytes, read_packed, unpacked_tensors
from tests.random_model import RandomModel, small_spec

from ullage.base.errors import ModelFileError
from ullage.kernels import native
from ullage.kernels.layout import tensor_types, weight_layout
from ullage.kernels.native import native_isas, native_unavailable_reason, pack_weights
from ullage.kernels.weight_formats import CARRIED, FORMATS, WeightType
from ullage.models.spec import expected_tensors

K = 512
WHOLE = (0, 16)  # first output and stride: rows one after another
GATE, UP = (0, 32), (16, 32)


def arena_of(num_bytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8)  # whole pages, so on a 64-byte boundary


def pack_stored(
    format_name: str, outputs: int, sources: Sequence[tuple[str, NDArray[np.uint8], tuple[int, int]]], k: int = K
) -> NDArray[np.float32] | None:
    """Packs stored rows and reads them back; None when they are refused."""
    arena = arena_of(packed_bytes(format_name, outputs, k))
    for block_type, rows, place in sources:
        if not native._native.pack_stored(arena, 0, outputs, k, format_name, rows, block_type, *place):
            return None
    return read_packed(arena, format_name, outputs, k)


def pack_floats(format_name: str, rows: NDArray[np.float32], outputs: int) -> NDArray[np.float32]:
    k = -(-rows.shape[1] // 32) * 32
    arena = arena_of(packed_bytes(format_name, outputs, k))
    native._native.pack(arena, 0, outputs, k, format_name, rows, *WHOLE)
    return read_packed(arena, format_name, outputs, k)


def any_halves(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float16]:
    """Finite half-precision numbers of any size: subnormal ones, zeros and the largest too."""
    halves = rng.integers(0, 1 << 16, shape, np.uint16).view(np.float16)
    halves = np.where(np.isfinite(halves), halves, np.float16(65504))
    edges = np.array([0.0, -0.0, 2.0**-24, -65504.0, 2.0**-14 - 2.0**-24], np.float16)[: halves.size]
    halves.flat[: edges.size] = edges
    return halves


def any_rows(block_type: str, num_rows: int, k: int, seed: int) -> NDArray[np.uint8]:
    """Stored rows of random bits, whose scales and minima are any halves."""
    rng = np.random.default_rng(seed)
    blocks = random_bits(block_type, num_rows, k, rng)
    for at in half_places(block_type):
        set_half(blocks, at, any_halves(blocks.shape[:2], rng))
    return blocks.reshape(num_rows, -1)


every_holder = pytest.mark.parametrize(
    ("block_type", "format_name"), [(each, name) for each in BLOCK_TYPES for name in (CARRIED[each], "int8_g16_min")]
)


def test_the_kernels_were_compiled() -> None:
    assert native_unavailable_reason() is None
    assert "portable" in native_isas()


def test_the_formats_are_those_of_the_header() -> None:
    for name, form in FORMATS.items():
        assert form.tile_bytes(K) == packed_bytes(name, 32, K), name


@every_holder
@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("num_rows", [1, 21, 64])
def test_blocks_are_carried_over_without_loss(
    block_type: str, format_name: str, num_blocks: int, num_rows: int
) -> None:
    """Equal as float32, not only close: what isn't stored as it is comes out of products that float32 holds."""
    k, outputs = num_blocks * block_shape(block_type)[0], -(-num_rows // 32) * 32
    rows = any_rows(block_type, num_rows, k, seed=num_rows)
    packed = pack_stored(format_name, outputs, [(block_type, rows, WHOLE)], k)
    np.testing.assert_array_equal(packed[:num_rows], dequantized(block_type, rows))
    assert not packed[num_rows:].any()


@every_holder
@pytest.mark.parametrize("num_rows", [16, 40])
def test_gate_and_up_rows_take_turns(block_type: str, format_name: str, num_rows: int) -> None:
    gate, up = any_rows(block_type, num_rows, K, seed=2), any_rows(block_type, num_rows, K, seed=3)
    outputs = -(-num_rows // 16) * 32
    packed = pack_stored(format_name, outputs, [(block_type, gate, GATE), (block_type, up, UP)])
    for rows, place in ((gate, GATE), (up, UP)):
        places = [output_of(row, *place) for row in range(num_rows)]
        np.testing.assert_array_equal(packed[places], dequantized(block_type, rows))


@pytest.mark.parametrize(("first", "second"), list(product(BLOCK_TYPES, ["Q4_K", "Q6_K", "Q8_0"])))
def test_one_matrix_holds_blocks_of_two_types(first: str, second: str) -> None:
    above, below = any_rows(first, 48, K, seed=4), any_rows(second, 10, K, seed=5)
    packed = pack_stored("int8_g16_min", 64, [(first, above, WHOLE), (second, below, (48, 16))])
    np.testing.assert_array_equal(packed[:48], dequantized(first, above))
    np.testing.assert_array_equal(packed[48:58], dequantized(second, below))


@every_holder
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_scale_or_minimum_that_is_no_number_is_refused(block_type: str, format_name: str, wrong: float) -> None:
    for at in half_places(block_type):
        blocks = random_rows(block_type, 3, K, np.random.default_rng(6), 1.0).reshape(3, -1, block_shape(block_type)[1])
        set_half(blocks[1:2, -1:], at, np.full((1, 1), wrong))
        assert pack_stored(format_name, 32, [(block_type, blocks.reshape(3, -1), WHOLE)]) is None


@pytest.mark.parametrize(
    ("block_type", "format_name"), [("Q5_0", "int4"), ("Q4_1", "int8"), ("Q8_0", "int4_min"), ("Q4_K", "int8_g16")]
)
def test_a_format_that_would_lose_something_is_refused(block_type: str, format_name: str) -> None:
    rows = random_rows(block_type, 2, K, np.random.default_rng(7), 1.0)
    assert pack_stored(format_name, 32, [(block_type, rows, WHOLE)]) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": 48}, "impossible size"),
        ({"k": 48}, "impossible size"),
        ({"k": 256}, "rows of another length"),
        ({"format": "int3"}, "unknown weight format"),
        ({"format": "bf16"}, "aren't carried over to bf16"),
        ({"block_type": "Q3_K"}, "unknown block type"),
        ({"first_output": 31}, "rows don't fit"),
        ({"group_stride": 8}, "rows don't fit"),
        ({"offset": 2 * 32 * K - 64}, "outside the arena"),
        ({"offset": 32}, "64-byte boundary"),
    ],
)
def test_what_would_leave_its_place_is_refused(changes: dict[str, object], message: str) -> None:
    arguments = {
        "arena": arena_of(packed_bytes("bf16", 32, K)),
        "offset": 0,
        "outputs": 32,
        "k": K,
        "format": "int8",
        "rows": any_rows("Q8_0", 2, K, seed=8),
        "block_type": "Q8_0",
        "first_output": 0,
        "group_stride": 16,
    }
    with pytest.raises(ValueError, match=message):
        native._native.pack_stored(**(arguments | changes))


# ---- Floats ----------------------------------------------------------------------------------------------------------


def rounded_to_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Nearest, ties to even."""
    words = values.view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def inverse_of(scale: np.float32) -> np.float32:
    return np.float32(1) / scale if scale > 0 else np.float32(0)  # below 0 where the minimum rounds above the group


def rounded_to_int8(group: NDArray[np.float32]) -> NDArray[np.float32]:
    scale = np.float32(np.float16(np.abs(group).max() / np.float32(127)))
    return np.clip(np.rint(group * inverse_of(scale)), -128, 127) * scale


def rounded_to_int4(group: NDArray[np.float32]) -> NDArray[np.float32]:
    minimum = np.float32(np.float16(group.min()))
    scale = np.float32(np.float16((group.max() - minimum) / np.float32(15)))
    return np.clip(np.rint((group - minimum) * inverse_of(scale)), 0, 15) * scale + minimum


def by_groups(round_group, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounds every 32 of each row, the last group perhaps shorter."""
    groups = np.split(values, range(32, values.shape[1], 32), axis=1)
    return np.concatenate([np.stack([round_group(row) for row in group]) for group in groups], axis=1)


def float_rows(num_rows: int, k: int) -> NDArray[np.float32]:
    """Groups of sizes 2^-8 to 2^8, some off centre."""
    rng = np.random.default_rng(num_rows * k)
    sizes = np.exp2(rng.uniform(-8, 8, (num_rows, -(-k // 32)))).repeat(32, axis=1)[:, :k]
    return (rng.standard_normal((num_rows, k)) * sizes + rng.integers(0, 2, (num_rows, 1))).astype(np.float32)


ROUNDINGS = {
    "bf16": rounded_to_bf16,
    "int8": lambda values: by_groups(rounded_to_int8, values),
    "int4_min": lambda values: by_groups(rounded_to_int4, values),
}


@pytest.mark.parametrize("format_name", ROUNDINGS)
@pytest.mark.parametrize(("num_rows", "k"), [(1, 16), (5, 32), (33, 48), (64, 176)])
def test_floats_are_rounded_to_the_nearest(format_name: str, num_rows: int, k: int) -> None:
    rows = float_rows(num_rows, k)
    packed = pack_floats(format_name, rows, -(-num_rows // 32) * 32)
    np.testing.assert_array_equal(packed[:num_rows, :k], ROUNDINGS[format_name](rows))
    assert not packed[num_rows:].any()


@pytest.mark.parametrize("k", [16, 48])
@pytest.mark.parametrize("format_name", ["bf16", "int8"])
def test_what_is_padded_along_k_is_zero(format_name: str, k: int) -> None:
    assert not pack_floats(format_name, float_rows(20, k), 32)[:, k:].any()


@pytest.mark.parametrize("format_name", ROUNDINGS)
def test_groups_without_a_spread_are_held(format_name: str) -> None:
    rows = np.zeros((3, 64), np.float32)
    rows[1], rows[2] = 0.75, -0.75
    if format_name == "int8":
        assert np.abs(pack_floats(format_name, rows, 32)[:3] - rows).max() <= 0.75 * 2.0**-11  # the scale's rounding
    else:
        np.testing.assert_array_equal(pack_floats(format_name, rows, 32)[:3], rows)


def test_a_narrow_group_is_its_minimum_where_that_rounds_above_all_of_it() -> None:
    """Halves beside 1 are 2^-10 apart: all of the first group rounds up to the next, the second is on both sides."""
    rows = np.repeat(np.float32([[0.6, 0.4]]) * np.float32(2.0**-10) + 1, 32, axis=1)
    rows += np.tile(np.linspace(0, 0.2 * 2.0**-10, 32, dtype=np.float32), 2)
    packed = pack_floats("int4_min", rows, 32)
    np.testing.assert_array_equal(packed[0, :32], np.float32(1 + 2.0**-10))
    assert np.abs(packed[:1] - rows).max() < 0.41 * 2.0**-10
    np.testing.assert_array_equal(packed[:1], ROUNDINGS["int4_min"](rows))


def test_floats_too_large_for_a_half_are_held_down_to_the_largest() -> None:
    rows = np.full((1, 32), 1e10, np.float32)
    assert pack_floats("int8", rows, 32)[0, 0] == 127 * 65504


# ---- A model ---------------------------------------------------------------------------------------------------------

SIZES = {"hidden_size": 256, "intermediate_size": 272, "head_size": 64, "num_heads": 8, "num_kv_heads": 4}
TYPES = {
    "embed": "Q6_K",
    "lm_head": "Q4_0",
    "q": "Q4_K",
    "k": "Q4_K",
    "v": "Q6_K",
    "o": "Q5_K",
    "gate": "Q5_1",
    "up": "Q5_1",
}
SPEC = replace(small_spec("qwen3"), **SIZES)


def packed_model(model: RandomModel, weight_type: WeightType) -> dict[str, NDArray[np.float32]]:
    """Its matrices by name, packed and read back."""
    layout = weight_layout(model.spec, weight_type, tensor_types(model))
    arena = arena_of(layout.num_bytes)
    pack_weights(model, layout, arena, num_threads=2)
    for operator in layout.operators:
        for vector in operator.vectors.values():
            values = arena[vector.offset : vector.offset + 4 * vector.length].view(np.float32)
            np.testing.assert_array_equal(values, np.concatenate([model.read_tensor(name) for name in vector.sources]))
    return unpacked_tensors(arena, layout, expected_tensors(model.spec))


@pytest.mark.parametrize("piece_elements", [1 << 20, 16 * 272])
def test_every_tensor_of_a_file_finds_its_place(monkeypatch, piece_elements: int) -> None:
    """Blocks without loss, what is in no blocks as bf16; read whole or 16 rows at a time."""
    monkeypatch.setattr(native, "PIECE_ELEMENTS", piece_elements)
    model = BlockModel(SPEC, TYPES)
    tensors = packed_model(model, "file")
    assert tensors.keys() == {name for name, shape in expected_tensors(SPEC).items() if len(shape) == 2}
    for name, values in tensors.items():
        expected = model.read_tensor(name)
        in_blocks = name.rpartition(".")[2] in TYPES
        np.testing.assert_array_equal(values, expected if in_blocks else rounded_to_bf16(expected), err_msg=name)


def test_a_matrix_partly_in_blocks_becomes_bf16() -> None:
    model = BlockModel(SPEC, {"q": "Q8_0", "k": "Q8_0"})
    tensors = packed_model(model, "file")
    for name in ("layers.1.q", "layers.1.k", "layers.1.v"):
        np.testing.assert_array_equal(tensors[name], rounded_to_bf16(model.read_tensor(name)))


@pytest.mark.parametrize("weight_type", ["bf16", "int8", "int4"])
def test_other_weight_types_round_what_the_file_holds(weight_type: WeightType) -> None:
    model = BlockModel(SPEC, TYPES)
    for name, values in packed_model(model, weight_type).items():
        format_name = {"bf16": "bf16", "int8": "int8", "int4": "int4_min"}[weight_type]
        if weight_type == "int4" and name in ("embed", "lm_head"):
            format_name = "int8"  # the vocabulary stays at 8 bits
        np.testing.assert_array_equal(values, ROUNDINGS[format_name](model.read_tensor(name)), err_msg=name)


class DamagedBlocks(BlockModel):
    def read_stored_rows(self, name: str, first: int, count: int) -> NDArray[np.uint8]:
        rows = super().read_stored_rows(name, first, count)
        if name == "layers.1.v":
            rows[-1, -2:] = 0x7E  # a half that is no number
        return rows


def test_a_damaged_tensor_is_refused_by_name() -> None:
    with pytest.raises(ModelFileError, match=r"tensor layers\.1\.v holds NaN or infinity") as refused:
        packed_model(DamagedBlocks(SPEC, TYPES), "file")
    assert "fetch it again" in refused.value.hint
