"""vLLM's rules one by one; the figures in comments were printed by it, of models that the cases don't have."""

from __future__ import annotations

import pytest
from tests.unit.plan.start_up_cases import cases

from ullage.base.errors import ConfigError
from ullage.plan.as_engine import as_engine

DENSE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
SLIDING = {**DENSE, "num_hidden_layers": 12, "sliding_window": 512, "sliding_window_pattern": 6}
KIMI_LINEAR = {
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "vocab_size": 163840,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [layer for layer in range(1, 27) if layer % 4],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
}
QWEN35_9B = {
    "model_type": "qwen3_5_text",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "mamba_ssm_dtype": "float32",
    "vocab_size": 248320,
}
GIB = 1024**3


def report(config: dict, version: str | None = None, kv_dtype: str = "bf16", **given: object) -> dict:
    return as_engine(
        config, {"engine_name": "vllm", "engine_version": version, "kv_dtype_name": kv_dtype, "given": given}
    )


def config_of(name: str) -> dict:
    return next(case.config for case in cases("exact", "rounded", "information-only") if case.name == name)


def test_a_start_with_too_long_requests_prints_its_pool_and_fails():
    # 2.89 GiB: 1,478 blocks, 23,648 tokens, 0.82x, and no server
    printed = report(DENSE, "0.6.4", num_gpu_blocks=1478, block_size=16, max_model_len=29000)
    assert (printed["capacity_tokens"], round(printed["kv_gib"], 2)) == (23648, 2.89)
    assert round(printed["max_concurrency"], 2) == 0.82
    assert "doesn't start" in printed["notes"][0]


@pytest.mark.parametrize(("kv_dtype", "block"), [("bf16", 528), ("fp8", 1056)])
def test_a_hybrids_block_grows_until_it_holds_a_state(kv_dtype, block):
    assert report(QWEN35_9B, kv_dtype=kv_dtype)["block_tokens"] == block


def test_hybrids_with_latent_attention_align_to_what_its_kernels_take():
    printed = report(KIMI_LINEAR, "0.11.1", tensor_parallel_size=2)
    assert (printed["block_tokens"], round(printed["mamba_pad_percent"], 2)) == (960, 1.89)
    assert report(KIMI_LINEAR, "0.27.0", tensor_parallel_size=2)["block_tokens"] == 1024


NEMOTRON_9B = {
    "model_type": "nemotron_h",
    "hidden_size": 4480,
    "intermediate_size": 15680,
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M-*M",
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "vocab_size": 131072,
}
LFM2 = {
    "model_type": "lfm2",
    "hidden_size": 2048,
    "intermediate_size": 12288,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "layer_types": ["conv", "conv", "full_attention"] * 4 + ["conv", "full_attention"] * 2,
    "vocab_size": 65536,
}


def test_states_of_mamba_2_count_their_groups():
    assert report(NEMOTRON_9B)["block_tokens"] == 672


def test_a_small_state_is_padded_to_a_page_of_attention():
    # 217,264 tokens and 313.37x at 2,048 tokens; groups of six layers, two of them padding
    printed = report(LFM2, "0.20.0", num_gpu_blocks=40_738, max_model_len=2048)
    assert (printed["block_tokens"], printed["mamba_pad_percent"]) == (16, 300)
    assert (printed["capacity_tokens"], round(printed["max_concurrency"], 2)) == (217_264, 313.37)


@pytest.mark.parametrize(("length", "tokens"), [(32_768, 78_433), (65_536, 116_025), (131_072, 152_592)])
def test_two_steps_in_flight_keep_their_blocks_since_0_26(length, tokens):
    # Gemma 4 26B, 4.25 GiB, 2,496 tokens a step
    given = {"kv_memory_gib": 4.25, "max_model_len": length, "max_num_batched_tokens": 2496}
    assert report(config_of("gemma4-26b-thor"), "0.29.0", **given)["capacity_tokens"] == tokens


def test_ranks_cut_both_kinds_of_layers_of_a_mixed_model():
    # Gemma 4 31B on two ranks in fp8, 16 GiB: 132,784 tokens, 4.05x at 32,768 with 16,384 tokens in flight
    given = {"kv_memory_gib": 16, "max_model_len": 32_768, "max_num_batched_tokens": 16_384, "tensor_parallel_size": 2}
    printed = report(config_of("gemma4-31b-hfmem"), None, "fp8", token_line="concurrency", **given)
    assert (printed["capacity_tokens"], round(printed["max_concurrency"], 2)) == (132_784, 4.05)


def test_draft_tokens_make_the_state_and_with_it_the_block_larger():
    # a hybrid with an indexer, two draft tokens
    printed = report(config_of("qwen38-flash-next-llamacpp"), num_speculative_tokens=2, max_model_len=8192)
    assert (printed["block_tokens"], round(printed["mamba_pad_percent"], 2)) == (1600, 0.88)
    assert printed["num_gpu_blocks"] is None
    assert "indexers" in printed["notes"][0]


def test_compressed_attention_has_five_groups_and_a_large_fixed_part():
    # needs 6.66 GiB at 30,000 tokens; 13,528 tokens fit in 5.44 GiB
    given = {"max_model_len": 30_000, "max_num_batched_tokens": 16_384, "tensor_parallel_size": 2}
    printed = report(config_of("dsv4-flash-gh200"), "0.22", "fp8", num_gpu_blocks=5554, **given)
    assert round(printed["kv_gib_needed"], 2) == 6.66
    assert printed["estimated_max_model_len"] == 13_528
    assert round(printed["kv_gib"], 2) == 5.44


def test_compressed_attention_of_later_releases_is_said_to_be_unknown():
    printed = report(config_of("dsv4-flash-gh200"), "0.26.0", "fp8", kv_memory_gib=7, max_model_len=30_000)
    assert printed["capacity_tokens"] is None
    assert "aren't known" in printed["notes"][0]
    with pytest.raises(ConfigError, match="fp8"):
        report(config_of("dsv4-flash-gh200"), "0.22", "bf16")


def test_sliding_layers_are_grouped_by_the_rarer_kind():
    # two full and ten sliding layers: six groups of two
    blocks = report(SLIDING, "0.11.0", kv_memory_gib=1)["num_gpu_blocks"]
    assert blocks == GIB // (2 * 16 * 4096)
    assert report(SLIDING, "0.11.0", kv_memory_gib=1)["capacity_tokens"] == blocks // 6 * 16


def test_before_groups_sliding_layers_cost_as_much_as_full_ones():
    old = report(SLIDING, "0.8.5", kv_memory_gib=1, max_model_len=4096)
    assert old["num_gpu_blocks"] == GIB // (12 * 16 * 4096)
    assert old["capacity_tokens"] == old["num_gpu_blocks"] * 16


@pytest.mark.parametrize(("version", "layers"), [("0.11.0", 3), ("0.13.0", 3), ("0.18.0", 4), ("0.25.0", 4)])
def test_two_kinds_of_nearly_as_many_layers_share_one_depth_since_0_18(version, layers):
    kinds = ["full_attention"] * 3 + ["sliding_attention"] * 4
    config = {**DENSE, "num_hidden_layers": 7, "sliding_window": 512, "layer_types": kinds}
    assert report(config, version, kv_memory_gib=1)["num_gpu_blocks"] == GIB // (layers * 16 * 4096)


def test_figures_per_request_are_left_out_where_the_tokens_of_a_step_are_not_known():
    printed = report(SLIDING, "0.11.0", kv_memory_gib=1, max_model_len=8192)
    assert printed["max_concurrency"] is None
    assert "max_num_batched_tokens" in printed["notes"][0]
    known = report(SLIDING, "0.11.0", kv_memory_gib=1, max_model_len=8192, max_num_batched_tokens=2048)
    window_blocks = -(-(511 + 2048) // 16) + 1
    assert known["max_concurrency"] == printed["num_gpu_blocks"] / (512 + 5 * window_blocks)


def test_layers_that_only_pad_count_for_a_requests_need_since_0_14():
    kinds = ["full_attention"] * 2 + ["sliding_attention"] * 5
    config = {**DENSE, "num_hidden_layers": 7, "sliding_window": 512, "layer_types": kinds}
    given = {"max_model_len": 1600, "max_num_batched_tokens": 8192}
    full, window = 100, 101  # blocks
    before, since = (report(config, version, **given)["kv_gib_needed"] * GIB for version in ("0.13.0", "0.14.0"))
    assert before == (2 * full + 5 * window) * 16 * 4096
    assert since == 2 * (full + 3 * window) * 16 * 4096


def test_the_token_line_changed_its_meaning_in_0_21():
    given = {"num_gpu_blocks": 1000, "block_size": 16, "max_model_len": 1001}
    assert report(DENSE, "0.20.2", **given)["capacity_tokens"] == 16_000
    assert report(DENSE, "0.21.0", **given)["capacity_tokens"] == 1000 * 1001 // 63
    assert report(DENSE, "<0.21", **given)["capacity_tokens"] == 16_000


def test_ranks_share_heads_but_keep_at_least_one():
    rate = report(DENSE, kv_memory_gib=1)["kv_bytes_per_token"]
    assert rate == 32 * 8 * 128 * 2 * 2
    assert report(DENSE, tensor_parallel_size=4)["kv_bytes_per_token"] == rate // 4
    assert report(DENSE, tensor_parallel_size=16)["kv_bytes_per_token"] == rate // 8


def test_a_pipeline_counts_its_largest_stage():
    config = {**DENSE, "num_hidden_layers": 7}
    blocks = report(config, pipeline_parallel_size=2, kv_memory_gib=1)["num_gpu_blocks"]
    assert blocks == GIB // (4 * 16 * 4096)


@pytest.mark.parametrize(
    ("kv_dtype", "bytes_per_head"),
    [("fp8", 128), ("int8_per_token_head", 132), ("nvfp4", 72), ("auto", 256), ("fp16", 256)],
)
def test_scales_of_quantised_keys_and_values_count(kv_dtype, bytes_per_head):
    assert report(DENSE, kv_dtype=kv_dtype)["kv_bytes_per_token"] == 32 * 8 * 2 * bytes_per_head


def test_sparse_latent_attention_in_fp8_is_packed_with_its_scales():
    config = config_of("glm52-fp8dsmla")
    assert report(config, kv_dtype="fp8", mtp_layers=1)["kv_bytes_per_token"] == 79 * 656 + 22 * 132
    # nvfp4 records of 432 bytes: 37,032 bytes a token were printed
    assert report(config, mtp_layers=1, mla_record_bytes=432)["kv_bytes_per_token"] == 37_032


def test_four_bit_keys_and_values_count_their_scales():
    # 1,823,372 tokens and 1.74x at 1,048,576 tokens; groups of 17 layers, two draft tokens
    given = {"num_gpu_blocks": 666, "max_model_len": 1_048_576, "mtp_layers": 1, "num_speculative_tokens": 2}
    printed = report(config_of("qwen38-27b-fp8-talos"), "0.27.0", "nvfp4", mamba_cache_mode="align", **given)
    assert (printed["capacity_tokens"], round(printed["max_concurrency"], 2)) == (1_823_372, 1.74)


def test_ranks_of_decode_context_parallelism_share_a_requests_tokens():
    # GLM-5.2, 1,810,000,000 bytes on each of four ranks: 132,096 tokens, 1.01x at 131,072
    given = {"kv_memory_gib": 1_810_000_000 / GIB, "max_model_len": 131_072, "mtp_layers": 1, "block_size": 64}
    printed = report(config_of("glm52-fp8dsmla"), None, "fp8", decode_context_parallel_size=4, **given)
    assert (printed["capacity_tokens"], round(printed["max_concurrency"], 2)) == (132_096, 1.01)


GRANITE_4_SMALL = {
    "model_type": "granitemoehybrid",
    "hidden_size": 4096,
    "intermediate_size": 768,
    "num_hidden_layers": 5,
    "layer_types": ["mamba", "mamba", "attention", "mamba", "mamba"],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_chunk_size": 256,
    "vocab_size": 100352,
}


@pytest.mark.parametrize(("mode", "block"), [("none", 528), ("align", 528), ("all", 768)])
def test_states_in_every_block_fall_between_chunks_of_the_recurrence(mode, block):
    assert report(GRANITE_4_SMALL, mamba_cache_mode=mode)["block_tokens"] == block


def test_states_in_every_block_grow_with_the_request():
    given = {"num_gpu_blocks": 1000, "max_model_len": 7680}
    assert report(GRANITE_4_SMALL, mamba_cache_mode="all", **given)["max_concurrency"] == 1000 / (5 * 10)
    assert report(GRANITE_4_SMALL, mamba_cache_mode="none", **given)["max_concurrency"] == 1000 / (15 + 4)


def test_states_in_every_block_are_refused_where_chunks_are_not_known():
    with pytest.raises(ConfigError, match="mamba_cache_mode"):
        report(QWEN35_9B, mamba_cache_mode="all")


@pytest.mark.parametrize(("version", "groups"), [("0.9.1", 1), ("0.9.2", 4), ("0.11.0", 1), ("0.13.0", 4), (None, 4)])
def test_layers_within_chunks_have_groups_of_their_own_where_the_release_allows(version, groups):
    config = {**DENSE, "num_hidden_layers": 8, "attention_chunk_size": 8192, "no_rope_layers": [1, 1, 1, 0] * 2}
    blocks = report(config, version, kv_memory_gib=1)["num_gpu_blocks"]
    assert blocks == GIB // (8 // groups * 16 * 4096)
    given = {"num_gpu_blocks": 1000, "max_model_len": 65536, "max_num_batched_tokens": 8192}
    per_request = 4096 if groups == 1 else 4096 + 3 * 1024
    assert report(config, version, **given)["max_concurrency"] == 1000 / per_request
