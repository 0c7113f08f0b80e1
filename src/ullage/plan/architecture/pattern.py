"""Which layer is of which kind, from the many ways in which configurations say it."""

from __future__ import annotations

from typing import Literal

from ullage.base.errors import ConfigError
from ullage.plan.architecture.fields import Fields

LayerKind = Literal["full", "sliding", "chunked", "linear", "mamba", "hybrid", "conv", "mlp", "moe"]
"""Attention over everything, over a window, within a chunk; linear attention; a state-space layer; one that also has
attention; a short convolution; a feed-forward layer of its own, dense or with experts."""

_NAMES: dict[str, LayerKind] = {
    "full_attention": "full",
    "full": "full",
    "attention": "full",
    "global": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "sliding": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "hybrid": "hybrid",
    "conv": "conv",
    "mlp": "mlp",
    "moe": "moe",
}
_NEMOTRON: dict[str, LayerKind] = {"M": "mamba", "*": "full", "-": "mlp", "E": "moe"}
_LETTERS: dict[str, LayerKind] = {"L": "sliding", "G": "full"}
_OF_ONE_KIND: dict[str, LayerKind] = {"mamba": "mamba", "mamba2": "mamba", "falcon_h1": "hybrid"}
"""Model types whose layers are all alike, which no field says."""


def layer_kinds(fields: Fields, num_layers: int) -> tuple[LayerKind, ...]:
    """The kind of each layer.

    :raises ConfigError: a list of the wrong length, or a kind that isn't known, by name
    """
    for read in (_from_names, _from_letters, _from_flags, _from_indices, _from_periods):
        kinds = read(fields, num_layers)
        if kinds is not None:
            return kinds
    return _from_window(fields, num_layers)


def _from_names(fields: Fields, num_layers: int) -> tuple[LayerKind, ...] | None:
    for name in ("layer_types", "layers_block_type", "layer_block_types"):
        names = fields.texts(name)
        if names is None:
            continue
        _check_length(fields, name, len(names), num_layers)
        for index, kind in enumerate(names):
            if kind not in _NAMES:
                raise ConfigError(
                    f"{fields.path}: {name}[{index}] is {kind!r}, a kind of cache that isn't known",
                    hint="known are " + ", ".join(sorted(_NAMES)),
                )
        return tuple(_NAMES[kind] for kind in names)
    return None


def _from_letters(fields: Fields, num_layers: int) -> tuple[LayerKind, ...] | None:
    """Nemotron-H (``MEM*``) and EXAONE 4 (``LLLG``, repeated)."""
    if fields.has("hybrid_override_pattern"):
        letters = fields.text("hybrid_override_pattern")
        _check_length(fields, "hybrid_override_pattern", len(letters), num_layers)
        return _spell(fields, "hybrid_override_pattern", letters, _NEMOTRON)
    pattern = fields.values.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        fields.read.add("sliding_window_pattern")
        letters = (pattern * num_layers)[:num_layers]
        return _spell(fields, "sliding_window_pattern", letters, _LETTERS)
    return None


def _from_flags(fields: Fields, num_layers: int) -> tuple[LayerKind, ...] | None:
    """One number a layer: MiMo-V2 (1: sliding), MiniMax-01 (1: full, 0: lightning), Llama 4 (1: within a chunk)."""
    choices: tuple[tuple[str, LayerKind, LayerKind], ...] = (
        ("hybrid_layer_pattern", "full", "sliding"),
        ("attn_type_list", "linear", "full"),
        ("no_rope_layers", "full", "chunked"),
    )
    for name, if_zero, if_one in choices:
        flags = fields.integers(name)
        if not flags:
            continue
        _check_length(fields, name, len(flags), num_layers)
        if name == "no_rope_layers" and not fields.has("attention_chunk_size"):
            return None
        return tuple(if_one if flag else if_zero for flag in flags)
    return None


def _from_indices(fields: Fields, num_layers: int) -> tuple[LayerKind, ...] | None:
    """Lists of layer numbers: Kimi Linear (counted from 1), Bamba and LFM2 (from 0)."""
    linear = fields.section("linear_attn_config")
    if linear is not None:
        full = linear.integers("full_attn_layers") or ()
        kda = linear.integers("kda_layers") or ()
        if sorted((*full, *kda)) != list(range(1, num_layers + 1)):
            raise linear.wrong("kda_layers", f"with full_attn_layers all layers from 1 to {num_layers}, each once")
        return _alternate([index + 1 in full for index in range(num_layers)], "linear")
    others: tuple[tuple[str, LayerKind], ...] = (("attn_layer_indices", "mamba"), ("full_attn_idxs", "conv"))
    for name, other in others:
        indices = fields.integers(name)
        if indices is not None:
            return _alternate([index in indices for index in range(num_layers)], other)
    return None


def _from_periods(fields: Fields, num_layers: int) -> tuple[LayerKind, ...] | None:
    """Every n-th layer is full: Jamba, Qwen3-Next, Gemma 3 and Cohere 2, Llama 4."""
    if fields.has("attn_layer_period"):
        period = fields.integer("attn_layer_period")
        offset = fields.integer("attn_layer_offset", default=0, at_least=0)
        return _alternate([index % period == offset for index in range(num_layers)], "mamba")
    periods: tuple[tuple[str, str, LayerKind], ...] = (
        ("full_attention_interval", "linear_num_value_heads", "linear"),
        ("sliding_window_pattern", "sliding_window", "sliding"),
        ("no_rope_layer_interval", "attention_chunk_size", "chunked"),
    )
    for name, needed, other in periods:
        if fields.has(name) and fields.has(needed):
            period = fields.integer(name)
            return _alternate([(index + 1) % period == 0 for index in range(num_layers)], other)
    return None


def _from_window(fields: Fields, num_layers: int) -> tuple[LayerKind, ...]:
    """One kind for all, or Qwen's rule: layers from ``max_window_layers`` on are sliding."""
    model_type = fields.text("model_type", default="")
    if model_type in _OF_ONE_KIND:
        return (_OF_ONE_KIND[model_type],) * num_layers
    has_rule = fields.has("max_window_layers")
    if not fields.has("sliding_window") or not fields.boolean("use_sliding_window", default=not has_rule):
        return _alternate([True] * num_layers, "sliding")
    first = fields.integer("max_window_layers", default=0, at_least=0) if has_rule else 0
    return _alternate([index < first for index in range(num_layers)], "sliding")


def _alternate(is_full: list[bool], other: LayerKind) -> tuple[LayerKind, ...]:
    return tuple("full" if full else other for full in is_full)


def _check_length(fields: Fields, name: str, length: int, num_layers: int) -> None:
    if length != num_layers:
        raise ConfigError(f"{fields.path}: {name} describes {length} layers, num_hidden_layers says {num_layers}")


def _spell(fields: Fields, name: str, letters: str, meaning: dict[str, LayerKind]) -> tuple[LayerKind, ...]:
    for index, letter in enumerate(letters):
        if letter not in meaning:
            raise ConfigError(f"{fields.path}: {name}[{index}] is {letter!r}, a kind of layer that isn't known")
    return tuple(meaning[letter] for letter in letters)
