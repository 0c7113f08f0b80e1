"""``config.json`` of a Hugging Face folder → ``ModelSpec``.

Published files leave keys out and rely on the defaults of their class in transformers; those defaults stand here. A key
that asks for something that can't run is refused by name, never passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ullage.base.errors import ModelFileError
from ullage.models.fields import SMALL, Fields
from ullage.models.hf_rope import extended_context, read_rope
from ullage.models.spec import MAX_HEAD_SIZE, MAX_LAYERS, Activation, LayerSpec, ModelSpec
from ullage.models.tensor_check import unsupported_architecture

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class _ClassDefaults:
    """What a class of transformers assumes when the file doesn't say."""

    architecture: str
    max_position: int
    num_heads: int
    num_kv_heads: int | None
    """None: as many as heads."""
    head_size: int | None
    """None: hidden size / heads."""
    vocab_size: int
    windows: Callable[[Fields, int], tuple[int | None, ...]]
    """Sliding window of each layer."""
    theta: float = 10_000.0
    tied: bool = False


def _no_windows(keys: Fields, num_layers: int) -> tuple[int | None, ...]:
    del keys
    return (None,) * num_layers


def _mistral_windows(keys: Fields, num_layers: int) -> tuple[int | None, ...]:
    if keys.states("sliding_window") and not keys.has("sliding_window"):
        return (None,) * num_layers  # an explicit null: later Mistrals have no window
    window = keys.integer("sliding_window", 4096)
    return tuple(window if kind == SLIDING else None for kind in _layer_types(keys, [SLIDING] * num_layers))


def _qwen_windows(keys: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Most files state a window and switch it off beside it."""
    if not keys.flag("use_sliding_window", False) or (keys.states("sliding_window") and not keys.has("sliding_window")):
        return (None,) * num_layers
    window = keys.integer("sliding_window", 4096)
    num_full = keys.integer("max_window_layers", 28, minimum=0)
    default = [SLIDING if i >= num_full else FULL for i in range(num_layers)]
    return tuple(window if kind == SLIDING else None for kind in _layer_types(keys, default))


def _gemma3_windows(keys: Fields, num_layers: int) -> tuple[int | None, ...]:
    window = keys.integer("sliding_window", 4096)
    period = keys.integer("sliding_window_pattern", keys.integer("_sliding_window_pattern", 6))
    default = [SLIDING if (i + 1) % period else FULL for i in range(num_layers)]
    return tuple(window if kind == SLIDING else None for kind in _layer_types(keys, default))


def _layer_types(keys: Fields, default: list[str]) -> list[str]:
    if not keys.has("layer_types"):
        return default
    kinds = keys.raw("layer_types")
    if not isinstance(kinds, list) or len(kinds) != len(default):
        raise keys.error("layer_types", f"must be a list with one entry for each of {len(default)} layers")
    for kind in kinds:
        if kind not in (SLIDING, FULL):
            raise keys.error("layer_types", f"contains {kind!r:.80}, which can't run here")
    return kinds


_QWEN2 = _ClassDefaults("qwen2", 32768, 32, 32, None, 151_936, _qwen_windows)
_GEMMA3 = _ClassDefaults("gemma3", 131_072, 8, 4, 256, 262_208, _gemma3_windows, theta=1_000_000.0, tied=True)
_CLASSES = MappingProxyType(
    {
        "LlamaForCausalLM": _ClassDefaults("llama", 2048, 32, None, None, 32_000, _no_windows),
        "MistralForCausalLM": _ClassDefaults("llama", 131_072, 32, 8, None, 32_000, _mistral_windows),
        "Qwen2ForCausalLM": _QWEN2,
        "Qwen3ForCausalLM": _ClassDefaults("qwen3", 32768, 32, 32, 128, 151_936, _qwen_windows),
        "Gemma3ForCausalLM": _GEMMA3,
        "Gemma3ForConditionalGeneration": _GEMMA3,
    }
)
_CLASS_OF_MODEL_TYPE = MappingProxyType(
    {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "gemma3_text": "Gemma3ForCausalLM",
        "gemma3": "Gemma3ForConditionalGeneration",
    }
)
_ACTIVATIONS: MappingProxyType[str, Activation] = MappingProxyType({"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"})


def spec_from_config(path: Path, config: dict[str, object], name: str) -> ModelSpec:
    """
    :param path: of ``config.json``, for messages
    :param name: what the spec is to be called
    :raises ModelFileError: an architecture or a feature that can't run, or a key that is missing or impossible
    """
    top = Fields(path, config)
    defaults = _class_defaults(top)
    keys = top.section("text_config") or top  # a model with a vision part keeps its text model here
    _refuse_unsupported(top, keys)
    hidden_size = keys.integer("hidden_size")
    num_heads = keys.integer("num_attention_heads", defaults.num_heads)
    num_kv_heads = keys.integer("num_key_value_heads", _num_kv_heads(keys, defaults, num_heads))
    if num_heads % num_kv_heads:
        raise keys.error("num_attention_heads", f"({num_heads}) isn't a multiple of the KV heads ({num_kv_heads})")
    head_size = _head_size(keys, defaults, hidden_size, num_heads)
    gemma3 = defaults.architecture == "gemma3"
    tied = keys.flag("tie_word_embeddings", defaults.tied)
    max_position = keys.integer("max_position_embeddings", defaults.max_position)
    return ModelSpec(
        architecture=defaults.architecture,
        name=name,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        vocab_size=keys.integer("vocab_size", defaults.vocab_size),
        max_position=extended_context(keys, max_position),
        layers=_layers(keys, defaults, head_size),
        norm_eps=keys.number("rms_norm_eps", 1e-6, maximum=1.0),
        activation=_activation(keys, gemma3),
        tied_embeddings=top.flag("tie_word_embeddings", tied),
        qkv_bias=defaults.architecture == "qwen2",
        qk_norm=defaults.architecture in ("qwen3", "gemma3"),
        post_norms=gemma3,
        embedding_scale=math.sqrt(hidden_size) if gemma3 else 1.0,
        attention_scale=_attention_scale(keys, head_size) if gemma3 else None,
    )


def _class_defaults(top: Fields) -> _ClassDefaults:
    names = top.raw("architectures")
    if isinstance(names, list) and names:
        name = names[0]
    else:
        model_type = top.text("model_type")
        name = _CLASS_OF_MODEL_TYPE.get(model_type, model_type)
    if not isinstance(name, str) or name not in _CLASSES:
        raise unsupported_architecture(top.path, str(name))
    return _CLASSES[name]


def _refuse_unsupported(top: Fields, keys: Fields) -> None:
    for section in (top.section("quantization_config"), keys.section("quantization_config")):
        if section is not None:
            raise ModelFileError(
                f"{top.path}: weights quantised with {section.text('quant_method', 'an unnamed method')} can't be read",
                hint="use the unquantised model, or a GGUF file",
            )
    for key, feature in (
        ("attention_bias", "a bias on the attention's output"),
        ("mlp_bias", "biases in the feed-forward part"),
        ("rope_interleaved", "interleaved rotary pairs"),
        ("use_bidirectional_attention", "attention in both directions"),
    ):
        if keys.flag(key, False):
            raise keys.error(key, f"asks for {feature}, which can't run here")
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if keys.has(key):
            raise keys.error(key, "asks for softcapping, which can't run here")
    if keys.number("partial_rotary_factor", 1.0) != 1.0:
        raise keys.error("partial_rotary_factor", "other than 1 can't run here")


def _num_kv_heads(keys: Fields, defaults: _ClassDefaults, num_heads: int) -> int:
    if defaults.num_kv_heads is None or keys.states("num_key_value_heads"):
        return num_heads  # an explicit null means the same in every class
    return defaults.num_kv_heads


def _head_size(keys: Fields, defaults: _ClassDefaults, hidden_size: int, num_heads: int) -> int:
    by_class = None if keys.states("head_dim") else defaults.head_size
    if by_class is None and not keys.has("head_dim"):
        if hidden_size % num_heads:
            raise keys.error("hidden_size", f"({hidden_size}) isn't a multiple of num_attention_heads ({num_heads})")
        by_class = hidden_size // num_heads
    head_size = keys.integer("head_dim", by_class, maximum=MAX_HEAD_SIZE)
    if head_size % 2 or head_size > MAX_HEAD_SIZE:
        raise keys.error("head_dim", f"must be even and at most {MAX_HEAD_SIZE}, not {head_size}")
    return head_size


def _layers(keys: Fields, defaults: _ClassDefaults, head_size: int) -> tuple[LayerSpec, ...]:
    num_layers = keys.integer("num_hidden_layers", maximum=MAX_LAYERS)
    windows = defaults.windows(keys, num_layers)
    gemma3 = defaults.architecture == "gemma3"
    full = read_rope(keys, FULL, defaults.theta, head_size, old_local=False)
    sliding = read_rope(keys, SLIDING, 10_000.0 if gemma3 else defaults.theta, head_size, old_local=gemma3)
    return tuple(LayerSpec(full if window is None else sliding, window) for window in windows)


def _activation(keys: Fields, gemma3: bool) -> Activation:
    key, default = ("hidden_activation", "gelu_pytorch_tanh") if gemma3 else ("hidden_act", "silu")
    name = keys.text(key, default)
    if name not in _ACTIVATIONS:
        raise keys.error(key, f"{name!r:.80} can't run here", hint=f"those that can: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _attention_scale(keys: Fields, head_size: int) -> float | None:
    scalar = keys.number("query_pre_attn_scalar", 256, above=SMALL)
    return None if scalar == head_size else float(scalar**-0.5)
