"""GGUF metadata → ``ModelSpec``, for the architectures that run. Key names and defaults are llama.cpp's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ModelFileError
from ullage.models.fields import SMALL, Fields
from ullage.models.rope_scaling import Yarn, linear_rope, yarn_attention_factor, yarn_rope
from ullage.models.spec import (
    MAX_HEAD_SIZE,
    MAX_LAYERS,
    RUNNABLE_ARCHITECTURES,
    LayerSpec,
    ModelSpec,
    RopeSpec,
)
from ullage.models.tensor_check import unsupported_architecture

GEMMA3_LOCAL_THETA = 10_000.0
GEMMA3_WINDOW_PERIOD = 6
GEMMA3_27B_LAYERS = 62


def spec_from_metadata(
    path: Path,
    metadata: Mapping[str, object],
    shapes: Mapping[str, tuple[int, ...]],
    rope_freqs: NDArray[np.float32] | None,
) -> ModelSpec:
    """
    :param shapes: of all tensors in the file, by the file's names
    :param rope_freqs: the tensor ``rope_freqs.weight``, if the file has it: one divisor per rotary frequency
    :raises ModelFileError: an architecture or a feature that can't run, or a key that is missing or impossible
    """
    architecture = Fields(path, metadata).text("general.architecture")
    if architecture not in RUNNABLE_ARCHITECTURES:
        raise unsupported_architecture(path, architecture)
    keys = _architecture_keys(path, metadata, architecture)
    _refuse_unsupported(keys, architecture)
    hidden_size = keys.integer("embedding_length")
    num_heads = _same_in_all_layers(keys, "attention.head_count")
    num_kv_heads = _same_in_all_layers(keys, "attention.head_count_kv", num_heads)
    head_size = _head_size(keys, hidden_size, num_heads)
    if num_heads % num_kv_heads:
        raise keys.error("attention.head_count", f"({num_heads}) isn't a multiple of head_count_kv ({num_kv_heads})")
    gemma3 = architecture == "gemma3"
    rope = _rope(keys, head_size, rope_freqs)
    return ModelSpec(
        architecture=architecture,
        name=Fields(path, metadata).text("general.name", path.stem),
        hidden_size=hidden_size,
        intermediate_size=_same_in_all_layers(keys, "feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        vocab_size=_vocab_size(path, shapes),
        max_position=_max_position(keys),
        layers=_gemma3_layers(keys, rope) if gemma3 else _uniform_layers(keys, architecture, rope),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", maximum=1.0),
        activation="gelu_tanh" if gemma3 else "silu",
        tied_embeddings="output.weight" not in shapes,
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in shapes,
        qk_norm=architecture in ("qwen3", "gemma3"),
        post_norms=gemma3,
        embedding_scale=math.sqrt(hidden_size) if gemma3 else 1.0,
        attention_scale=_attention_scale(keys, gemma3, hidden_size // num_heads),
    )


def _architecture_keys(path: Path, metadata: Mapping[str, object], architecture: str) -> Fields:
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    return Fields(path, own, prefix)


def _refuse_unsupported(keys: Fields, architecture: str) -> None:
    for key, feature in (
        ("expert_count", "a mixture of experts"),
        ("final_logit_softcapping", "softcapped logits"),
        ("attn_logit_softcapping", "softcapped attention"),
        ("logit_scale", "scaled logits"),
        ("embedding_scale", "a scaled embedding"),
        ("residual_scale", "a scaled residual"),
        ("rope.scaling.yarn_log_multiplier", "YaRN with a logarithm multiplier"),
    ):
        if keys.has(key) and keys.number(key, above=-1e12) != 0:
            raise keys.error(key, f"asks for {feature}, which can't run here")
    if not keys.flag("attention.causal", True):
        raise keys.error("attention.causal", f"is false: a {architecture} model that doesn't generate")


def _same_in_all_layers(keys: Fields, key: str, default: int | None = None) -> int:
    """The value, which may be given once or for each layer."""
    values = keys.raw(key)
    if not isinstance(values, np.ndarray):
        return keys.integer(key, default)
    if values.size == 0 or values.dtype.kind not in "iu" or (values != values[0]).any():
        raise keys.error(key, "differs from layer to layer, which can't run here")
    return Fields(keys.path, {key: values[0].item()}, "").integer(key)


def _head_size(keys: Fields, hidden_size: int, num_heads: int) -> int:
    if not keys.has("attention.key_length") and hidden_size % num_heads:
        raise keys.error("embedding_length", f"({hidden_size}) isn't a multiple of the heads ({num_heads})")
    head_size = keys.integer("attention.key_length", max(hidden_size // num_heads, 1), maximum=MAX_HEAD_SIZE)
    if head_size % 2:
        raise keys.error("attention.key_length", f"must be even, not {head_size}")
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_size) != head_size:
            raise keys.error(key, f"differs from the head size {head_size}, which can't run here")
    return head_size


def _vocab_size(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> int:
    shape = shapes.get("token_embd.weight")
    if shape is None or len(shape) != 2:
        raise ModelFileError(f"{path}: there is no embedding matrix (token_embd.weight)")
    return shape[0]


def _attention_scale(keys: Fields, gemma3: bool, query_size: int) -> float | None:
    if keys.has("attention.scale"):
        return keys.number("attention.scale")
    if gemma3 and keys.integer("block_count", maximum=MAX_LAYERS) == GEMMA3_27B_LAYERS:
        # The 27B model scales by hidden size / heads instead of its head size; the file doesn't say so.
        return float(query_size**-0.5)
    return None


def _rope(keys: Fields, head_size: int, rope_freqs: NDArray[np.float32] | None) -> RopeSpec:
    theta = keys.number("rope.freq_base", 10_000.0, above=1.0)
    kind = keys.text("rope.scaling.type", "linear")
    if kind == "yarn":
        rope = yarn_rope(theta, head_size, _yarn(keys))
    elif kind in ("linear", "none"):
        # Older files have the factor under another name.
        factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0), above=SMALL)
        rope = linear_rope(theta, head_size, factor if kind == "linear" else 1.0)
    else:
        raise keys.error("rope.scaling.type", f"{kind!r:.80} can't run here", hint="linear, yarn and none can")
    if rope_freqs is None:
        return rope
    if rope_freqs.shape != (head_size // 2,) or not (rope_freqs > SMALL).all():
        raise ModelFileError(f"{keys.path}: rope_freqs.weight must be {head_size // 2} positive numbers")
    divisors = rope_freqs * np.asarray(rope.freq_factors or 1.0, np.float32)
    return RopeSpec(theta, tuple(divisors.tolist()), rope.attention_factor)


def _yarn(keys: Fields) -> Yarn:
    factor = keys.number("rope.scaling.factor", above=SMALL)
    return Yarn(
        factor=factor,
        original_context=keys.integer("rope.scaling.original_context_length", keys.integer("context_length")),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, above=SMALL),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, above=SMALL),
        attention_factor=keys.number("rope.scaling.attn_factor", 1.0, above=SMALL) * yarn_attention_factor(factor),
    )


def _max_position(keys: Fields) -> int:
    context = keys.integer("context_length")
    if keys.text("rope.scaling.type", "none") != "yarn":
        return context
    return max(context, round(_yarn(keys).factor * _yarn(keys).original_context))


def _uniform_layers(keys: Fields, architecture: str, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    # Only Mistral's models are of the llama kind and have a window. Qwen's files may carry the key of a window that is
    # switched off.
    window = keys.integer("attention.sliding_window", 0, minimum=0) if architecture == "llama" else 0
    return (LayerSpec(rope, window or None),) * keys.integer("block_count", maximum=MAX_LAYERS)


def _gemma3_layers(keys: Fields, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    num_layers = keys.integer("block_count", maximum=MAX_LAYERS)
    window = keys.integer("attention.sliding_window", 0, minimum=0)
    if not window:
        return (LayerSpec(rope),) * num_layers
    local = LayerSpec(RopeSpec(keys.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA, above=1.0)), window)
    pattern = keys.raw("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        if pattern.dtype.kind not in "biu" or pattern.size != num_layers:
            raise keys.error("attention.sliding_window_pattern", f"must have one entry for each of {num_layers} layers")
        return tuple(local if is_local else LayerSpec(rope) for is_local in pattern.tolist())
    period = keys.integer("attention.sliding_window_pattern", GEMMA3_WINDOW_PERIOD)
    return tuple(local if (i + 1) % period else LayerSpec(rope) for i in range(num_layers))
