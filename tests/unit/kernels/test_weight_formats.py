from __future__ import annotations

from itertools import combinations

import pytest
from tests.block_model import BLOCK_TYPES

from ullage.kernels.weight_formats import CARRIED, FORMATS, WEIGHT_TYPES, matrix_format


def test_every_block_type_has_a_format_that_carries_it():
    assert sorted(CARRIED) == sorted(BLOCK_TYPES)
    assert set(CARRIED.values()) <= set(FORMATS)


@pytest.mark.parametrize("block_type", BLOCK_TYPES)
def test_a_matrix_of_one_type_keeps_it(block_type):
    for types in ([block_type], [block_type] * 3):
        assert matrix_format("file", types, is_vocabulary=False).name == CARRIED[block_type]
        assert matrix_format("file", types, is_vocabulary=True).name == CARRIED[block_type]


@pytest.mark.parametrize(("one", "other"), list(combinations(BLOCK_TYPES, 2)))
def test_a_mixed_matrix_takes_the_form_that_holds_all_unless_one_form_is_both(one, other):
    expected = CARRIED[one] if CARRIED[one] == CARRIED[other] else "int8_g16_min"
    assert matrix_format("file", [one, one, other], is_vocabulary=False).name == expected


@pytest.mark.parametrize("unknown", ["F32", "F16", "BF16", "F64", "Q3_K", "IQ4_XS", "MXFP4"])
def test_what_is_in_no_known_blocks_becomes_bf16(unknown):
    assert matrix_format("file", [unknown], is_vocabulary=False).name == "bf16"
    assert matrix_format("file", ["Q8_0", unknown], is_vocabulary=False).name == "bf16"


@pytest.mark.parametrize(
    ("weight_type", "expected", "of_vocabulary"),
    [("bf16", "bf16", "bf16"), ("int8", "int8", "int8"), ("int4", "int4_min", "int8")],
)
@pytest.mark.parametrize("stored_type", ["F32", "Q4_0", "Q3_K"])
def test_other_weight_types_ask_nothing_of_the_file(weight_type, expected, of_vocabulary, stored_type):
    assert matrix_format(weight_type, [stored_type], is_vocabulary=False).name == expected
    assert matrix_format(weight_type, [stored_type], is_vocabulary=True).name == of_vocabulary


def test_all_weight_types_are_known():
    for weight_type in WEIGHT_TYPES:
        assert matrix_format(weight_type, ["Q4_0"], is_vocabulary=False).name in FORMATS


@pytest.mark.parametrize(
    ("name", "bits_each"),
    [
        ("bf16", 16),
        ("int4", 4.5),
        ("int4_min", 5),
        ("int4_min_f32", 6),
        ("int8", 8.5),
        ("int8_min_f32", 10),
        ("int8_g16", 10),
        ("int8_g16_min", 12),
    ],
)
def test_a_tile_takes_its_numbers_and_their_scales(name, bits_each):
    for k in (32, 96, 1024):
        assert FORMATS[name].tile_bytes(k) == 32 * k * bits_each / 8
