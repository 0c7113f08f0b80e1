from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.plan.number_types import head_bytes, item_bytes, row_bytes


@pytest.mark.parametrize(("name", "size"), [("bfloat16", 2), ("fp16", 2), ("float32", 4), ("fp8_e4m3", 1), ("int8", 1)])
def test_a_value_takes_the_bytes_of_its_type(name, size):
    assert item_bytes(name, field="kv_dtype") == size


@pytest.mark.parametrize(("name", "size"), [("q8_0", 34), ("q5_1", 24), ("q4_0", 18), ("f16", 64)])
def test_a_row_takes_whole_blocks(name, size):
    assert row_bytes(name, 32, field="type_k") == size


@pytest.mark.parametrize(("name", "size"), [("nvfp4", 72), ("fp8_per_token_head", 132), ("bf16", 256)])
def test_a_head_takes_its_scales_along(name, size):
    assert head_bytes(name, 128, field="kv_dtype") == size


def test_a_type_that_is_not_known_is_named():
    with pytest.raises(ConfigError, match="kv_dtype is 'fp7'"):
        item_bytes("fp7", field="kv_dtype")
    with pytest.raises(ConfigError, match="32 at a time"):
        row_bytes("q8_0", 33, field="type_v")
