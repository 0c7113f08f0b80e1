"""Weights of the parts that see: vision towers whose tensors follow from the configuration. Never quantised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ullage.plan.architecture.fields import Fields
from ullage.plan.weights.tensors import Split, Weight, vector

TOWERS = ("vision_config", "audio_config", "talker_config")


def tower_weights(root: Fields, hidden: int) -> tuple[tuple[Weight, ...], tuple[str, ...]]:
    """Weights of the towers, and the names of those whose tensors aren't known here.

    :param hidden: width of the language model, which a tower's projector ends in
    """
    weights: list[Weight] = []
    uncounted = []
    for name in TOWERS:
        tower = root.section(name)
        if tower is None:
            continue
        build = _builder(tower) if name == "vision_config" else None
        if build is None:
            uncounted.append(name)
        else:
            weights += build(tower, hidden)
    return tuple(weights), tuple(uncounted)


def _builder(tower: Fields) -> Callable[[Fields, int], list[Weight]] | None:
    if tower.has("num_position_embeddings") and tower.has("depth"):
        return _qwen3
    return _BY_TYPE.get(tower.text("model_type", default=""))


def _matrix(name: str, rows: int, columns: int, split: Split = "whole") -> list[Weight]:
    """A matrix with its bias."""
    return [Weight(name, rows, columns, split=split), vector(f"{name}.bias", rows, split=split)]


def _block(width: int, inner: int, depth: int) -> list[Weight]:
    """``depth`` transformer layers with biases, layer norms and an MLP of two matrices."""
    one = [
        *_matrix("visual.blocks.attn.qkv", 3 * width, width, "rows"),
        *_matrix("visual.blocks.attn.proj", width, width, "columns"),
        *_matrix("visual.blocks.mlp.fc1", inner, width, "rows"),
        *_matrix("visual.blocks.mlp.fc2", width, inner, "columns"),
        vector("visual.blocks.norms", 4 * width),
    ]
    return [replace(weight, count=depth) for weight in one]


def _qwen3(tower: Fields, hidden: int) -> list[Weight]:
    """Qwen3-VL, Qwen3.5 and after: patches over two frames, learned positions, a merger of neighbouring patches."""
    width, inner = tower.integer("hidden_size"), tower.integer("intermediate_size")
    patch = tower.integer("patch_size") ** 2 * tower.integer("temporal_patch_size") * tower.integer("in_channels")
    merged = width * tower.integer("spatial_merge_size") ** 2
    out = tower.integer("out_hidden_size", default=hidden)
    merger = [
        *_matrix("visual.merger.fc1", merged, merged, "rows"),
        *_matrix("visual.merger.fc2", out, merged, "columns"),
    ]
    deeper = len(tower.integers("deepstack_visual_indexes") or ())
    return [
        *_matrix("visual.patch_embed", width, patch),
        Weight("visual.pos_embed", tower.integer("num_position_embeddings"), width),
        *_block(width, inner, tower.integer("depth", at_most=10_000)),
        *merger,
        vector("visual.merger.norm", 2 * width),
        *([replace(weight, count=deeper) for weight in merger] if deeper else []),
        *([Weight("visual.deepstack.norm", 2 * merged, count=deeper)] if deeper else []),
    ]


def _siglip(tower: Fields, hidden: int) -> list[Weight]:
    """Gemma 3: SigLIP at 896 pixels and one projection."""
    width, inner = tower.integer("hidden_size"), tower.integer("intermediate_size")
    patch = tower.integer("patch_size", default=14)
    positions = (tower.integer("image_size", default=896) // patch) ** 2
    return [
        *_matrix("visual.patch_embed", width, patch * patch * tower.integer("num_channels", default=3)),
        Weight("visual.pos_embed", max(1, positions), width),
        *_block(width, inner, tower.integer("num_hidden_layers", at_most=10_000)),
        vector("visual.post_layernorm", 2 * width),
        vector("visual.projector.norm", width),
        Weight("visual.projector", hidden, width),
    ]


def _pixtral(tower: Fields, hidden: int) -> list[Weight]:
    """Mistral 3: no biases, a gated MLP, a merger of four patches and a projector of two matrices."""
    width = tower.integer("hidden_size", default=1024)
    inner, depth = tower.integer("intermediate_size", default=4 * width), tower.integer("num_hidden_layers", default=24)
    patch = tower.integer("patch_size", default=16)
    return [
        Weight("visual.patch_conv", width, patch * patch * 3),
        Weight("visual.layers.attention", 4 * width, width, depth, split="rows"),
        Weight("visual.layers.feed_forward", 3 * inner, width, depth, split="rows"),
        Weight("visual.layers.norms", 2 * width, count=depth),
        vector("visual.ln_pre", 2 * width),
        Weight("visual.patch_merger", width, 4 * width),
        Weight("visual.projector.linear_1", hidden, width),
        Weight("visual.projector.linear_2", hidden, hidden),
    ]


_BY_TYPE: Mapping[str, Callable[[Fields, int], list[Weight]]] = {"siglip_vision_model": _siglip, "pixtral": _pixtral}
