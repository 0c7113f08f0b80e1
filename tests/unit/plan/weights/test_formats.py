from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.plan.weights import formats

ROWS, COLUMNS = 1024, 4096
VALUES = ROWS * COLUMNS


@pytest.mark.parametrize(
    ("fmt", "expected"),
    [
        (formats.FP8_PER_TENSOR, VALUES + 8),
        (formats.FP8_PER_ROW, VALUES + 4 * ROWS),
        (formats.fp8_in_blocks(128, 128), VALUES + 4 * 8 * 32),
        (formats.INT8_PER_ROW, VALUES + 4 * ROWS),
        (formats.awq(4, 128), VALUES // 2 + ROWS * 32 * 2 + ROWS * 32 // 2),
        (formats.awq(4, 128, zero_points=False), VALUES // 2 + ROWS * 32 * 2),
        (formats.gptq(4, 128), VALUES // 2 + ROWS * 32 * 2 + ROWS * 32 // 2 + COLUMNS * 4),
        (formats.NVFP4, VALUES // 2 + VALUES // 16 + 8),
        (formats.MXFP4, VALUES // 2 + VALUES // 32),
        (formats.Nf4(nested=False), VALUES // 2 + VALUES // 64 * 4 + 64),
        (formats.Nf4(nested=True), VALUES // 2 + VALUES // 64 + VALUES // 64 // 256 * 4 + 1028 + 64),
        (formats.ggml_type("q4_k"), VALUES // 256 * 144),
        (formats.ggml_type("Q8_0"), VALUES // 32 * 34),
        (formats.ggml_type("f16"), VALUES * 2),
    ],
    ids=str,
)
def test_a_matrix_takes_its_values_scales_and_zero_points(fmt, expected):
    assert fmt.matrix_bytes(ROWS, COLUMNS) == expected


def test_blocks_at_the_edge_have_a_scale_of_their_own():
    assert formats.fp8_in_blocks(128, 128).matrix_bytes(129, 129) == 129 * 129 + 4 * 4


def test_rows_that_do_not_fill_ggml_blocks_are_refused():
    with pytest.raises(ConfigError, match="256"):
        formats.ggml_type("q6_k").matrix_bytes(4, 100)
    with pytest.raises(ConfigError, match="q9"):
        formats.ggml_type("q9")
