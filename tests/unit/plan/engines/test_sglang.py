from __future__ import annotations

import pytest
from tests.unit.plan.start_up_cases import cases

from ullage.base.errors import ConfigError
from ullage.plan.as_engine import as_engine

CASES = {case.name: case for case in cases("exact", "information-only")}


def report(name: str, kv_dtype: str, **given: object) -> dict:
    file = {"engine_name": "sglang", "engine_version": None, "kv_dtype_name": kv_dtype, "given": given}
    return as_engine(CASES[name].config, file)


def test_states_are_kept_in_f32_with_one_slot_more():
    # Qwen3.8-27B: 360 slots: 0.99 and 50.77 GiB; 228,520 tokens: twice 3.49 GiB
    printed = report("qwen38-27b-fp8-talos", "fp8", max_total_tokens=228_520, mamba_slots=360)
    assert [round(printed[name], 2) for name in ("conv_gib", "ssm_gib", "k_gib", "v_gib")] == [0.99, 50.77, 3.49, 3.49]


def test_sliding_layers_without_a_pool_of_their_own_count_with_the_others():
    printed = report("mimo-v2-flash-sglang", "bf16", max_total_tokens=999, page_size=1, tensor_parallel_size=4)
    assert printed["k_gib"] * 1024**3 == 1000 * (9 * 1 + 39 * 2) * 192 * 2
    assert printed["swa_k_gib"] is None


def test_the_indexer_is_counted_or_not():
    given = {"max_total_tokens": 1000, "page_size": 64}
    counted = report("ds-v32-sglang-pr", "fp8", **given)
    without = report("ds-v32-sglang-pr", "fp8", count_indexer=False, **given)
    assert counted["kv_bytes_per_token"] - without["kv_bytes_per_token"] == 61 * 132
    assert round((counted["kv_gib"] - without["kv_gib"]) - counted["indexer_gib"], 9) == 0


def test_compressed_attention_is_refused_by_name():
    with pytest.raises(ConfigError, match="compress_ratios"):
        report("dsv4-flash-gh200", "fp8")
