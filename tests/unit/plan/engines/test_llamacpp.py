from __future__ import annotations

import pytest
from tests.unit.plan.start_up_cases import cases

from ullage.base.errors import ConfigError
from ullage.plan.as_engine import as_engine

CASES = {case.name: case for case in cases("exact", "rounded", "information-only")}
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "vocab_size": 32000,
}


def report(config: dict, version: str | None = None, **given: object) -> dict:
    return as_engine(
        config, {"engine_name": "llamacpp", "engine_version": version, "kv_dtype_name": "fp16", "given": given}
    )


def test_slots_that_share_a_buffer_share_its_window_cells():
    # gpt-oss-120b, four slots: 2304 MiB in 65,536 cells and 36 MiB in 1,024
    printed = report(CASES["gptoss120b-hfmem"].config, n_ctx=65536, n_seq_max=4, n_ubatch=512)
    assert (printed["kv_mib"], printed["swa_cells"], printed["swa_mib"]) == (2304, 1024, 36)


def test_slots_apart_have_a_window_each():
    config = CASES["gptoss120b-hfmem"].config
    apart = report(config, n_ctx=65536, n_seq_max=4, n_ubatch=512, kv_unified=False)
    assert (apart["kv_mib"], apart["swa_cells"], apart["swa_mib"]) == (2304, 768, 4 * 27)
    full = report(config, n_ctx=65536, swa_full=True)
    assert (full["swa_cells"], full["swa_mib"]) == (65536, 2304)


def test_old_builds_keep_sliding_layers_like_full_ones():
    printed = report(CASES["gptoss120b-hfmem"].config, "b5000", n_ctx=65536)
    assert (printed["kv_mib"], printed["swa_cells"]) == (4608, None)


def test_a_model_whose_layers_all_slide_keeps_everything():
    assert report(MISTRAL, n_ctx=8192)["kv_mib"] == 1024


@pytest.mark.parametrize(("version", "value_mib"), [("b7000", 3904), ("b9000", 0), (None, 0)])
def test_the_latent_is_kept_once_in_newer_builds(version, value_mib):
    printed = report(CASES["ds-v3-llamacpp-q4_0"].config, version, n_ctx=65536)
    assert (printed["k_mib"], printed["v_mib"]) == (61 * 576 * 2 / 16, value_mib)


def test_indexers_lose_their_unused_values_in_newer_builds():
    config = CASES["qwen38-flash-next-llamacpp"].config
    assert report(config, "b10888", n_ctx=262144)["indexer_v_mib"] == 1536
    assert report(config, "b10889", n_ctx=262144)["indexer_v_mib"] == 0


@pytest.mark.parametrize(("type_k", "bits"), [("f32", 32), ("q8_0", 8.5), ("q5_1", 6), ("q4_0", 4.5), ("iq4_nl", 4.5)])
def test_quantised_keys_count_their_scales(type_k, bits):
    assert report(MISTRAL, n_ctx=8192, type_k=type_k, type_v="f16")["k_mib"] == 256 * bits / 8


def test_rows_that_do_not_fill_blocks_are_refused():
    odd = {**MISTRAL, "head_dim": 6, "num_key_value_heads": 1}
    with pytest.raises(ConfigError, match="type_k"):
        report(odd, n_ctx=512, type_k="q8_0")


def test_pooled_indexers_are_refused_by_name():
    with pytest.raises(ConfigError, match="index_kpool"):
        report(CASES["glm53-flash-spark"].config, n_ctx=4096)
