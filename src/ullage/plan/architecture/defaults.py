"""What published configurations leave out: the defaults of their model classes (transformers), per ``model_type``.

Only values that a cache or a weight depends on. A model type that isn't here has no default that its file could rely
on: absent fields then mean the plain thing (as many KV heads as heads, embeddings apart from the output head).
"""

from __future__ import annotations

from collections.abc import Mapping

_GEMMA: dict[str, object] = {"head_dim": 256, "tie_word_embeddings": True, "gated_mlp": True}

CLASS_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {**_GEMMA, "sliding_window": 4096, "sliding_window_pattern": 6},
    "gemma3n_text": {**_GEMMA, "sliding_window": 512, "sliding_window_pattern": 5, "num_kv_shared_layers": 15},
    "gemma4_text": {**_GEMMA, "sliding_window": 512, "sliding_window_pattern": 6, "global_head_dim": 512},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2, "attention_bias": True},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 4},
    "olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "qwen2": {"attention_bias": True, "use_sliding_window": False},
    "qwen2_moe": {"attention_bias": True, "use_sliding_window": False},
    "qwen2_vl_text": {"attention_bias": True, "use_sliding_window": False},
    "qwen2_5_vl_text": {"attention_bias": True, "use_sliding_window": False},
    "qwen3": {"use_sliding_window": False, "head_dim": 128},
    "qwen3_moe": {"use_sliding_window": False},
    "qwen3_next": {"head_dim": 256, "full_attention_interval": 4},
    "gpt2": {"tie_word_embeddings": True, "gated_mlp": False, "attention_bias": True},
    "gpt_neox": {"gated_mlp": False, "attention_bias": True},
    "falcon": {"tie_word_embeddings": True, "gated_mlp": False},
    "bloom": {"tie_word_embeddings": True, "gated_mlp": False, "attention_bias": True},
    "opt": {"tie_word_embeddings": True, "gated_mlp": False, "attention_bias": True},
    "starcoder2": {"tie_word_embeddings": True, "gated_mlp": False, "attention_bias": True},
    "phi": {"gated_mlp": False, "attention_bias": True},
    "nemotron": {"gated_mlp": False},
    "nemotron_h": {"gated_mlp": False},
    "granite": {"tie_word_embeddings": True},
    "smollm3": {"tie_word_embeddings": True},
    "mamba": {"tie_word_embeddings": True},
    "mamba2": {"tie_word_embeddings": True},
    "zamba2": {"tie_word_embeddings": True, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1},
    "lfm2": {"tie_word_embeddings": True, "conv_L_cache": 3},
    "llama4_text": {"attention_chunk_size": 8192, "no_rope_layer_interval": 4, "head_dim": 128},
}

QK_NORMS = frozenset(
    {"qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "gemma3_text", "gemma4_text", "olmo3"}
)
"""Model types with a norm over each head of queries and keys; too small to matter to anyone but an exact sum."""
