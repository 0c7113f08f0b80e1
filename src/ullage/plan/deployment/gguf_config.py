"""The dimensions in a GGUF file under the names of ``config.json``. Key names are llama.cpp's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ullage.base.errors import ModelFileError
from ullage.models.gguf_header import GGUFHeader, MetadataValue

MODEL_TYPES: Mapping[str, str] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v3",
    "granite": "granite",
    "starcoder2": "starcoder2",
    "command-r": "cohere",
    "cohere2": "cohere2",
    "olmo2": "olmo2",
    "glm4": "glm4",
    "glm4moe": "glm4_moe",
    "smollm3": "smollm3",
}
"""Architectures whose caches follow from these keys, and the model type whose rules they have."""
_NAMES: Mapping[str, str] = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
}
_LATENT: Mapping[str, str] = {
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}
_STATES: Mapping[str, str] = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "full_attention_interval": "full_attention_interval",
}
_ALWAYS_WINDOWED = ("gemma2", "gemma3", "gpt-oss", "cohere2", "phi3")


def config_from_gguf(path: Path, header: GGUFHeader) -> dict[str, object]:
    """A configuration for ``architecture_of``.

    :raises ModelFileError: an architecture whose caches aren't known, or layers that differ in heads
    """
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in MODEL_TYPES:
        raise ModelFileError(
            f"{path}: architecture {architecture!r:.80} has caches that can't be read from a GGUF file here",
            hint="give the model's config.json; known are " + ", ".join(MODEL_TYPES),
        )
    keys = {
        name.removeprefix(f"{architecture}."): value
        for name, value in header.metadata.items()
        if name.startswith(f"{architecture}.")
    }
    config: dict[str, object] = {"model_type": MODEL_TYPES[architecture], "torch_dtype": "float16"}
    config |= _renamed(path, keys, _NAMES)
    if "attention.kv_lora_rank" in keys:
        config |= _renamed(path, keys, _LATENT)
        config.pop("head_dim", None)
        config |= _latent_heads(path, keys)
    if architecture == "qwen3next":
        config |= _renamed(path, keys, _STATES)
    if architecture not in _ALWAYS_WINDOWED:
        config.pop("sliding_window", None)  # a switch that is off beside it, or a model that is converted without
    layers = _whole(path, "block_count", keys.get("block_count"))
    config["num_hidden_layers"] = layers - _whole(path, "nextn", keys.get("nextn_predict_layers", 0))
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None:
        config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    return config


def _renamed(path: Path, keys: Mapping[str, MetadataValue], names: Mapping[str, str]) -> dict[str, object]:
    return {ours: _whole(path, theirs, keys[theirs]) for theirs, ours in names.items() if theirs in keys}


def _latent_heads(path: Path, keys: Mapping[str, MetadataValue]) -> dict[str, object]:
    """Expanded heads: newer files keep them apart from the latent that their plain keys then describe."""
    key = keys.get("attention.key_length_mla", keys.get("attention.key_length"))
    value = keys.get("attention.value_length_mla", keys.get("attention.value_length"))
    rope = _whole(path, "rope.dimension_count", keys.get("rope.dimension_count"))
    nope = _whole(path, "attention.key_length", key) - rope
    return {"qk_nope_head_dim": nope, "v_head_dim": _whole(path, "attention.value_length", value)}


def _whole(path: Path, key: str, value: MetadataValue | None) -> int:
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
        if key != "feed_forward_length" and (value != value[0]).any():
            raise ModelFileError(
                f"{path}: {key} differs from layer to layer, which can't be read from a GGUF file here",
                hint="give the model's config.json",
            )
        return int(value.max())
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelFileError(f"{path}: {key} must be a whole number, got {value!r:.40}")
    return value
