"""Parameters and bytes of a model's weights: in all, and per rank of tensor, pipeline and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ullage.base.errors import ConfigError
from ullage.plan.architecture import Architecture
from ullage.plan.number_types import item_bytes
from ullage.plan.sharing import stage_bounds
from ullage.plan.weights.formats import AnyFormat
from ullage.plan.weights.quantisation import Quantisation, quantisation_of
from ullage.plan.weights.tensors import Weight

VOCABULARY_PADDING = 64
"""vLLM rounds the vocabulary up, so that ranks share it evenly."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Ranks that share a model.

    :ivar experts: ranks among which experts are given out whole; 1: experts are cut like other matrices
    """

    tensor: int = 1
    pipeline: int = 1
    experts: int = 1


def num_parameters(architecture: Architecture, *, with_prediction: bool = False) -> int:
    """Parameters of the model; those of parts in ``uncounted`` are missing."""
    return sum(weight.parameters for weight, _ in _named(architecture, with_prediction=with_prediction))


def weight_bytes(architecture: Architecture, *, ggml: AnyFormat | None = None, with_prediction: bool = False) -> int:
    """Bytes of all weights as the checkpoint keeps them.

    :param ggml: a type that every matrix and the embedding have instead, as in a GGUF file of one type
    :raises ConfigError: a weight format that isn't known
    """
    named = _named(architecture, with_prediction=with_prediction)
    if ggml is not None:
        return sum(_ggml_bytes(weight, ggml) for weight, _ in named)
    quantisation = quantisation_of(architecture.quantisation)
    item = item_bytes(architecture.dtype, field="dtype")
    return sum(_bytes(weight, path, quantisation, item) for weight, path in named)


def weight_bytes_per_rank(architecture: Architecture, ranks: Parallelism, *, with_prediction: bool = False) -> int:
    """Bytes on the rank that holds most: the fullest pipeline stage, tensors cut, experts given out.

    :raises ConfigError: a weight format that isn't known, or more stages than layers
    """
    quantisation = quantisation_of(architecture.quantisation)
    item = item_bytes(architecture.dtype, field="dtype")

    def on_rank(weights: tuple[Weight, ...], path: str) -> int:
        return sum(_bytes(share(w, ranks), f"{path}{w.name}", quantisation, item) for w in weights)

    layers = [on_rank(layer.weights, f"model.layers.{index}.") for index, layer in enumerate(architecture.layers)]
    stages = [sum(layers[first:last]) for first, last in stage_bounds(len(layers), ranks.pipeline)]
    stages[0] += on_rank(architecture.outer_weights, "model.")
    stages[-1] += on_rank(architecture.final_weights, "")
    if architecture.tied_embeddings and ranks.pipeline > 1:  # the output head needs the embedding on its own rank
        stages[-1] += on_rank(architecture.outer_weights[:1], "model.")
    if with_prediction:
        for index, layer in enumerate(architecture.prediction_layers):
            stages[-1] += on_rank(layer.weights, f"model.layers.{architecture.num_layers + index}.")
    return max(stages)


def share(weight: Weight, ranks: Parallelism) -> Weight:
    """The part of a weight that one rank keeps; what can't be cut evenly is rounded up, as engines pad it."""
    if weight.expert and ranks.experts > 1:
        return replace(weight, count=-(-weight.count // ranks.experts))
    if weight.split == "whole" or (ranks.tensor == 1 and weight.name not in ("embed_tokens", "lm_head")):
        return weight
    if weight.split == "columns":
        return replace(weight, columns=-(-weight.columns // ranks.tensor))
    if weight.split == "kv_rows":
        heads = max(1, weight.heads // ranks.tensor)
        return replace(weight, rows=weight.rows // weight.heads * heads)
    rows = weight.rows
    if weight.name in ("embed_tokens", "lm_head"):
        rows = -(-rows // VOCABULARY_PADDING) * VOCABULARY_PADDING
    return replace(weight, rows=-(-rows // ranks.tensor))


def engine_weight_bytes(architecture: Architecture, ranks: Parallelism) -> int:
    """What vLLM reports after loading: a rank's weights and the table of rotary positions, in the model's type.

    :raises ConfigError: a weight format that isn't known, or parts whose weights aren't derived
    """
    if architecture.uncounted:
        raise ConfigError("weights of " + ", ".join(architecture.uncounted) + " aren't derived from the configuration")
    item = item_bytes(architecture.dtype, field="dtype")
    return weight_bytes_per_rank(architecture, ranks) + architecture.max_positions * architecture.rotary_dim * item


def _named(architecture: Architecture, *, with_prediction: bool) -> Iterator[tuple[Weight, str]]:
    """Every weight with its path in the checkpoint."""
    for weight in architecture.outer_weights:
        yield weight, f"model.{weight.name}"
    head = architecture.prediction_layers if with_prediction else ()
    for index, layer in enumerate((*architecture.layers, *head)):
        for weight in layer.weights:
            yield weight, f"model.layers.{index}.{weight.name}"
    for weight in architecture.final_weights:
        yield weight, weight.name


def _bytes(weight: Weight, path: str, quantisation: Quantisation | None, item: int) -> int:
    fmt = None if quantisation is None or path == "lm_head" else quantisation.format_of(weight, path)
    if fmt is not None:
        return fmt.matrix_bytes(weight.rows, weight.columns) * weight.count
    return weight.parameters * (4 if weight.float32 else item)


def _ggml_bytes(weight: Weight, ggml: AnyFormat) -> int:
    """Vectors stay f32 in GGUF files; matrices whose rows don't fill blocks stay f16."""
    if weight.columns == 1:
        return weight.parameters * 4
    try:
        return ggml.matrix_bytes(weight.rows, weight.columns) * weight.count
    except ConfigError:
        return weight.parameters * 2
