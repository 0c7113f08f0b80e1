"""``config.json`` of well-known models, as published (keys that say nothing about the shape are left out here)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ullage.base.errors import ModelFileError
from ullage.models.hf_config import spec_from_config
from ullage.models.spec import LayerSpec, ModelSpec, RopeSpec, expected_tensors

LLAMA2_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
LLAMA3_1_8B = LLAMA2_7B | {
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "attention_bias": False,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "vocab_size": 128256,
}
MISTRAL_7B_V0_1 = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "vocab_size": 32000,
}
MISTRAL_7B_V0_3 = MISTRAL_7B_V0_1 | {"rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768}
QWEN2_5_0_5B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
GEMMA3_1B = {  # leaves tie_word_embeddings out, which is true for its class
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
MIXTRAL_8X7B = MISTRAL_7B_V0_1 | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
MAMBA_130M = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 768, "vocab_size": 50280}


def read(config: dict[str, object]) -> ModelSpec:
    return spec_from_config(Path("config.json"), config, "published")


@pytest.mark.parametrize(
    ("config", "architecture", "num_parameters"),
    [
        (LLAMA2_7B, "llama", 6_738_415_616),
        (LLAMA3_1_8B, "llama", 8_030_261_248),
        (MISTRAL_7B_V0_1, "llama", 7_241_732_096),
        (MISTRAL_7B_V0_3, "llama", 7_248_023_552),
        (QWEN2_5_0_5B, "qwen2", 494_032_768),
        (QWEN3_0_6B, "qwen3", 596_049_920),
        (GEMMA3_1B, "gemma3", 999_885_952),
    ],
)
def test_a_model_has_the_number_of_parameters_it_is_published_with(config, architecture, num_parameters):
    spec = read(config)
    assert spec.architecture == architecture
    assert sum(map(math.prod, expected_tensors(spec).values())) == num_parameters


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (LLAMA2_7B, [None] * 32),
        (MISTRAL_7B_V0_1, [4096] * 32),
        (MISTRAL_7B_V0_3, [None] * 32),
        (QWEN2_5_0_5B, [None] * 24),  # states one, and switches it off beside it
        (GEMMA3_1B, [512, 512, 512, 512, 512, None] * 4 + [512, 512]),
    ],
)
def test_each_layer_looks_back_as_far_as_its_model_says(config, windows):
    assert [layer.window for layer in read(config).layers] == windows


def test_layers_turn_as_their_model_says():
    assert read(LLAMA2_7B).layers[0].rope == RopeSpec(10_000.0)  # left out, so the default of its class
    assert read(QWEN3_0_6B).layers[0].rope == RopeSpec(1_000_000.0)
    gemma = read(GEMMA3_1B)
    assert gemma.layers[4:6] == (LayerSpec(RopeSpec(10_000.0), 512), LayerSpec(RopeSpec(1_000_000.0)))


def test_llama_3_1_stretches_slow_frequencies_only():
    rope = read(LLAMA3_1_8B).layers[0].rope
    assert rope.theta == 500_000.0
    assert len(rope.freq_factors) == 64
    assert rope.freq_factors[0] == 1.0
    assert rope.freq_factors[-1] == 8.0
    assert list(rope.freq_factors) == sorted(rope.freq_factors)


@pytest.mark.parametrize(("config", "named"), [(MIXTRAL_8X7B, "MixtralForCausalLM"), (MAMBA_130M, "MambaForCausalLM")])
def test_an_architecture_that_cannot_run_is_refused_by_name(config, named):
    with pytest.raises(ModelFileError, match=named):
        read(config)
