"""What published configurations leave out: the defaults of their model classes (transformers), per ``model_type``.

Only values that a cache or a weight depends on. A model type that isn't here has no default that its file could rely
on: absent fields then mean the plain thing (as many KV heads as heads, embeddings apart from the output head).
"""

from __future__ import annotations

from collections.abc import Mapping

_GEMMA: dict[str, object] = {"head_dim": 256, "tie_word_embeddings": True, "vocab_size": 256_000}
_GEMMA2: dict[str, object] = {**_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096}
_GEMMA3: dict[str, object] = {**_GEMMA2, "vocab_size": 262_208, "max_position_embeddings": 131_072}
_QWEN_BIASED: dict[str, object] = {"attention_bias": True, "use_sliding_window": False}
_QWEN_DELTA: dict[str, object] = {
    "head_dim": 256,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "attn_output_gate": True,
}
_TWO_MATRICES: dict[str, object] = {"gated_mlp": False, "attention_bias": True}

CLASS_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gemma": {**_GEMMA, "num_attention_heads": 16, "num_key_value_heads": 16},
    "gemma2": {**_GEMMA2, "sliding_window_pattern": 2},
    "gemma3_text": {**_GEMMA3, "sliding_window_pattern": 6},
    "gemma3n_text": {
        **_GEMMA3,
        "num_hidden_layers": 35,
        "num_key_value_heads": 2,
        "sliding_window": 512,
        "sliding_window_pattern": 5,
        "num_kv_shared_layers": 15,
    },
    "gemma4_text": {**_GEMMA, "sliding_window": 512, "sliding_window_pattern": 6, "global_head_dim": 512},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2, "attention_bias": True},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 4},
    "olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "qwen2": _QWEN_BIASED,
    "qwen2_moe": _QWEN_BIASED,
    "qwen2_vl": _QWEN_BIASED,
    "qwen2_vl_text": _QWEN_BIASED,
    "qwen2_5_vl": _QWEN_BIASED,
    "qwen2_5_vl_text": _QWEN_BIASED,
    "qwen3": {"use_sliding_window": False, "head_dim": 128},
    "qwen3_moe": {"use_sliding_window": False},
    "qwen3_next": _QWEN_DELTA,
    "qwen3_5_text": _QWEN_DELTA,
    "qwen3_5_moe_text": _QWEN_DELTA,
    "gpt2": {**_TWO_MATRICES, "tie_word_embeddings": True},
    "gpt_bigcode": {**_TWO_MATRICES, "tie_word_embeddings": True, "multi_query": True},
    "gpt_neox": _TWO_MATRICES,
    "falcon": {"tie_word_embeddings": True, "gated_mlp": False, "multi_query": True},
    "bloom": {**_TWO_MATRICES, "tie_word_embeddings": True},
    "opt": {**_TWO_MATRICES, "tie_word_embeddings": True},
    "starcoder2": {**_TWO_MATRICES, "tie_word_embeddings": True},
    "phi": _TWO_MATRICES,
    "nemotron": {"gated_mlp": False},
    "nemotron_h": {"gated_mlp": False},
    "granite": {"tie_word_embeddings": True},
    "smollm3": {"tie_word_embeddings": True},
    "mamba": {"tie_word_embeddings": True, "state_size": 16, "conv_kernel": 4},
    "mamba2": {"state_size": 128, "conv_kernel": 4, "n_groups": 8, "head_dim": 64},
    "zamba2": {"tie_word_embeddings": True, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1},
    "jamba": {"mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2},
    "bamba": {"mamba_d_conv": 4, "mamba_d_state": 256, "mamba_d_head": 64, "mamba_n_groups": 1},
    "granitemoehybrid": {"mamba_d_conv": 4, "mamba_d_state": 256, "mamba_n_groups": 1},
    "lfm2": {"tie_word_embeddings": True, "conv_L_cache": 3},
    "lfm2_moe": {"tie_word_embeddings": True, "conv_L_cache": 3},
    "llama4_text": {
        "attention_chunk_size": 8192,
        "no_rope_layer_interval": 4,
        "head_dim": 128,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "n_shared_experts": 1,  # beside the routed ones, in every layer that has them; no field says so
    },
}

QK_NORMS = frozenset(
    {"qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "gemma3_text", "gemma4_text", "olmo3"}
)
"""Model types with a norm over each head of queries and keys; too small to matter to anyone but an exact sum."""
