"""Configurations as published: what they say, what they leave to their class, and what must be refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.base.errors import ModelFileError
from ullage.models.hf_config import spec_from_config
from ullage.models.spec import RopeSpec

PATH = Path("folder/config.json")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
LLAMA = {"architectures": ["LlamaForCausalLM"], **SIZES}
MISTRAL = {"architectures": ["MistralForCausalLM"], **SIZES, "num_attention_heads": 16}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], **SIZES, "num_key_value_heads": 2}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], **SIZES, "num_key_value_heads": 2}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "hidden_size": 1152, "intermediate_size": 6912} | {
    "num_hidden_layers": 7,
    "sliding_window": 512,
}
LLAMA3_SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | {
    "original_max_position_embeddings": 8192
}


def spec(config, **changes):
    keys = {key: value for key, value in (config | changes).items() if value is not ...}
    return spec_from_config(PATH, keys, "name")


def windows(config, **changes):
    return [layer.window for layer in spec(config, **changes).layers]


def rope(config, **changes):
    return spec(config, **changes).layers[0].rope


def test_llama_leaves_much_to_its_class():
    model = spec(LLAMA)
    assert (model.architecture, model.num_kv_heads, model.head_size) == ("llama", 4, 16)
    assert (model.vocab_size, model.max_position, model.norm_eps) == (32_000, 2048, 1e-6)
    assert (model.tied_embeddings, model.activation, model.qkv_bias, model.qk_norm) == (False, "silu", False, False)
    assert model.layers[0].rope == RopeSpec(10_000.0)


def test_a_null_counts_as_left_out():
    assert spec(LLAMA, num_key_value_heads=None, head_dim=None, rope_scaling=None) == spec(LLAMA)


def test_a_head_size_other_than_hidden_size_per_head_is_taken_from_the_file():
    assert spec(LLAMA, head_dim=100).head_size == 100
    assert spec(QWEN3).head_size == 128
    assert spec(QWEN3, head_dim=64).head_size == 64


def test_qwen2_has_biases_and_qwen3_norms_instead():
    assert (spec(QWEN2).qkv_bias, spec(QWEN2).qk_norm) == (True, False)
    assert (spec(QWEN3).qkv_bias, spec(QWEN3).qk_norm) == (False, True)


def test_the_model_type_stands_in_for_a_missing_class():
    assert spec(QWEN3, architectures=..., model_type="qwen3") == spec(QWEN3)


# --- sliding windows ---


def test_llama_has_no_window_whatever_stands_there():
    assert windows(LLAMA, sliding_window=4096) == [None] * 4


def test_mistral_has_a_window_unless_it_says_null():
    assert windows(MISTRAL) == [4096] * 4
    assert windows(MISTRAL, sliding_window=512) == [512] * 4
    assert windows(MISTRAL, sliding_window=None) == [None] * 4
    assert spec(MISTRAL).num_kv_heads == 8


@pytest.mark.parametrize("config", [QWEN2, QWEN3])
def test_a_qwen_window_that_is_switched_off_is_no_window(config):
    assert windows(config, sliding_window=32768, use_sliding_window=False, max_window_layers=2) == [None] * 4
    assert windows(config, sliding_window=32768) == [None] * 4
    assert windows(config, sliding_window=None, use_sliding_window=True) == [None] * 4


@pytest.mark.parametrize("config", [QWEN2, QWEN3])
def test_a_qwen_window_that_is_switched_on_begins_after_the_full_layers(config):
    assert windows(config, sliding_window=128, use_sliding_window=True, max_window_layers=3) == [None, None, None, 128]


def test_layer_types_win_over_the_rule():
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert windows(QWEN2, sliding_window=9, use_sliding_window=True, layer_types=kinds) == [9, None, None, 9]
    assert windows(MISTRAL, sliding_window=9, layer_types=kinds) == [9, None, None, 9]


# --- Gemma 3 ---


def test_gemma3_as_published_leaves_most_to_its_class():
    model = spec(GEMMA3)
    assert (model.num_heads, model.num_kv_heads, model.head_size) == (8, 4, 256)
    assert (model.vocab_size, model.max_position, model.tied_embeddings) == (262_208, 131_072, True)
    assert (model.activation, model.qk_norm, model.post_norms) == ("gelu_tanh", True, True)
    assert model.embedding_scale == 1152**0.5
    assert model.attention_scale is None
    assert windows(GEMMA3) == [512] * 5 + [None, 512]
    assert [layer.rope.theta for layer in model.layers] == [1e4] * 5 + [1e6, 1e4]


def test_gemma3_window_pattern_may_be_stated():
    assert windows(GEMMA3, sliding_window_pattern=3) == [512, 512, None, 512, 512, None, 512]
    assert windows(GEMMA3, _sliding_window_pattern=3) == windows(GEMMA3, sliding_window_pattern=3)


def test_gemma3_attention_scale_is_that_of_the_query_scalar():
    assert spec(GEMMA3, query_pre_attn_scalar=168).attention_scale == 168**-0.5
    assert spec(GEMMA3, query_pre_attn_scalar=256).attention_scale is None
    assert spec(GEMMA3, head_dim=128).attention_scale == 256**-0.5


def test_gemma3_scales_its_global_layers_only_in_the_old_style_and_the_new():
    old = spec(GEMMA3, rope_scaling={"rope_type": "linear", "factor": 8.0})
    local, full = old.layers[0].rope, old.layers[5].rope
    assert local == RopeSpec(1e4)
    assert full == RopeSpec(1e6, (8.0,) * 128)
    new = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert spec(GEMMA3, rope_parameters=new) == old


def test_the_text_part_of_a_gemma3_with_vision_is_read():
    text = {key: value for key, value in GEMMA3.items() if key != "architectures"}
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 9},
    }
    assert spec(whole) == spec(GEMMA3)


# --- rotary embedding ---


def test_llama3_scaling_gives_factors():
    factors = rope(
        LLAMA, head_dim=128, rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3_SCALING}
    ).freq_factors
    assert (factors[0], factors[-1]) == (1.0, 8.0)
    assert len(factors) == 64


def test_the_new_style_says_the_same_as_the_old():
    scaling = {"rope_type": "llama3", **LLAMA3_SCALING}
    assert rope(LLAMA, rope_parameters=scaling | {"rope_theta": 5e5}) == rope(
        LLAMA, rope_scaling=scaling, rope_theta=5e5
    )
    assert rope(LLAMA, rope_parameters={"rope_type": "default", "rope_theta": 5e5}) == RopeSpec(5e5)


def test_linear_scaling_under_its_old_name():
    assert rope(LLAMA, rope_scaling={"type": "linear", "factor": 2}).freq_factors == (2.0,) * 8


def test_yarn_stretches_the_stated_context():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    model = spec(QWEN2, rope_theta=1e6, rope_scaling=scaling, max_position_embeddings=32768)
    assert model.max_position == 131_072
    assert model.layers[0].rope.attention_factor == pytest.approx(1.1386, abs=1e-4)
    assert rope(QWEN2, rope_scaling=scaling | {"attention_factor": 1.25}).attention_factor == 1.25
    assert rope(QWEN2, rope_scaling=scaling | {"mscale": 1.0, "mscale_all_dim": 1.0}).attention_factor == 1.0
    del scaling["original_max_position_embeddings"]
    assert spec(QWEN2, rope_scaling=scaling, max_position_embeddings=1000).max_position == 4000


# --- refusals ---


@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "Phi3ForCausalLM", "DeepseekV3ForCausalLM"])
def test_other_classes_are_refused_with_those_that_run(name):
    with pytest.raises(ModelFileError, match=f"'{name}' can't run here.*llama, qwen2, qwen3, gemma3"):
        spec(LLAMA, architectures=[name])


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "bitsandbytes", "compressed-tensors"])
def test_quantised_checkpoints_are_refused_by_method(method):
    with pytest.raises(ModelFileError, match=f"quantised with {method}"):
        spec(LLAMA, quantization_config={"quant_method": method})


@pytest.mark.parametrize(
    ("config", "changes", "complaint"),
    [
        (LLAMA, {"attention_bias": True}, "attention_bias asks for"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias asks for"),
        (LLAMA, {"rope_interleaved": True}, "rope_interleaved asks for"),
        (LLAMA, {"hidden_act": "relu"}, "hidden_act 'relu' can't run here"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1"),
        (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor other"),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' can't run here"),
        (LLAMA, {"rope_scaling": {"rope_type": "longrope"}}, "'longrope' can't run here"),
        (LLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor must be above"),
        (LLAMA, {"rope_scaling": "linear"}, "rope_scaling must be an object"),
        (LLAMA, {"rope_scaling": {"type": "llama3", **LLAMA3_SCALING, "high_freq_factor": 1}}, "high_freq_factor"),
        (GEMMA3, {"final_logit_softcapping": 30.0}, "final_logit_softcapping asks for"),
        (GEMMA3, {"use_bidirectional_attention": True}, "use_bidirectional_attention asks for"),
        (QWEN2, {"use_sliding_window": True, "layer_types": ["full_attention"]}, "one entry for each of 4 layers"),
        (GEMMA3, {"layer_types": ["linear_attention"] * 7}, "'linear_attention', which can't run"),
        (LLAMA, {"hidden_size": ...}, "hidden_size is missing"),
        (LLAMA, {"hidden_size": "64"}, "hidden_size must be a whole number, not '64'"),
        (LLAMA, {"hidden_size": True}, "hidden_size must be a whole number"),
        (LLAMA, {"hidden_size": -64}, "hidden_size must be between"),
        (LLAMA, {"hidden_size": 66}, "isn't a multiple of num_attention_heads"),
        (LLAMA, {"hidden_size": 60}, "head_dim must be even"),
        (LLAMA, {"num_hidden_layers": 10**9}, "num_hidden_layers must be between"),
        (LLAMA, {"head_dim": 10**6}, "head_dim must be between"),
        (LLAMA, {"num_key_value_heads": 3}, "isn't a multiple of the KV heads"),
        (LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps must be above 0"),
        (LLAMA, {"rope_theta": "big"}, "rope_theta must be a number"),
        (LLAMA, {"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        (LLAMA, {"architectures": ..., "model_type": ...}, "model_type is missing"),
    ],
)
def test_what_cannot_run_or_be_is_refused_by_its_key(config, changes, complaint):
    with pytest.raises(ModelFileError, match=complaint) as error:
        spec(config, **changes)
    assert error.value.message.startswith("folder/config.json: ")
