"""How fast a step could be at best: what it must read over the read bandwidth, or what it must multiply over the peak.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52(4), 2009. The larger of the two times bounds the step.

Bytes of a step: every matrix once, and the keys and values that each sequence's queries see. Operations of a row: two
for each weight of the matrices, and 2 x 2 x query size x context in each layer for scores and weighted sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ullage.models.spec import ModelSpec, expected_tensors
from ullage.ops.bench.scenario import Point

Bound = Literal["memory", "compute"]


@dataclass(frozen=True, slots=True)
class Machine:
    """As measured in the same run."""

    read_bytes_per_second: float
    operations_per_second: float
    """Of the dot product that the weights are multiplied with."""


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """What a step of one model costs."""

    layer_parameters: int
    """Weights of the matrices in all layers."""
    head_parameters: int
    """Weights of the output matrix."""
    weight_bytes: int
    """Read in each step: all matrices, of an embedding that isn't the output matrix nothing worth counting."""
    token_bytes: float
    """KV bytes of one token in one layer."""
    q_size: int
    windows: tuple[int | None, ...]
    """Sliding window of each layer."""

    def kv_bytes(self, context: float) -> float:
        """Read for one sequence of so many tokens."""
        return self.token_bytes * sum(_seen(context, window) for window in self.windows)

    def attention_operations(self, context: float) -> float:
        """Of one row that sees so many tokens."""
        return 4 * self.q_size * sum(_seen(context, window) for window in self.windows)


@dataclass(frozen=True, slots=True)
class Limit:
    """Of one step, or of several, one after another."""

    memory_seconds: float
    compute_seconds: float
    seconds: float

    @property
    def bound(self) -> Bound:
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"

    def __add__(self, other: Limit) -> Limit:
        return Limit(
            self.memory_seconds + other.memory_seconds,
            self.compute_seconds + other.compute_seconds,
            self.seconds + other.seconds,
        )


def costs_of(spec: ModelSpec, weight_bytes: int, token_bytes: int) -> ModelCosts:
    """
    :param weight_bytes: as allocated, all tensors
    :param token_bytes: KV bytes of a token over all layers
    """
    sizes = {name: math.prod(shape) for name, shape in expected_tensors(spec).items() if len(shape) == 2}
    head = sizes["embed" if spec.tied_embeddings else "lm_head"]
    read_share = 1.0 if spec.tied_embeddings else 1 - sizes["embed"] / sum(sizes.values())
    return ModelCosts(
        layer_parameters=sum(size for name, size in sizes.items() if name.startswith("layers.")),
        head_parameters=head,
        weight_bytes=round(weight_bytes * read_share),
        token_bytes=token_bytes / spec.num_layers,
        q_size=spec.q_size,
        windows=tuple(layer.window for layer in spec.layers),
    )


def decode_step(costs: ModelCosts, machine: Machine, num_sequences: int, context: float) -> Limit:
    """One token for each sequence."""
    num_bytes = costs.weight_bytes + num_sequences * costs.kv_bytes(context)
    parameters = costs.layer_parameters + costs.head_parameters
    operations = num_sequences * (2 * parameters + costs.attention_operations(context))
    return _limit(machine, num_bytes, operations)


def prefill(costs: ModelCosts, machine: Machine, prompt_tokens: Sequence[int], chunk_tokens: int) -> Limit:
    """Prompts, read in steps of ``chunk_tokens`` tokens; the output matrix is multiplied with the last row of each.
    Causal attention: the token at position p sees p + 1.
    """
    num_tokens = sum(prompt_tokens)
    operations = 2.0 * costs.layer_parameters * num_tokens + 2 * costs.head_parameters * len(prompt_tokens)
    for length in prompt_tokens:
        operations += 4 * costs.q_size * sum(_seen_by_all(length, window) for window in costs.windows)
    num_steps = -(-num_tokens // chunk_tokens)
    return _limit(machine, num_steps * costs.weight_bytes, operations)


def limit_of(point: Point, costs: ModelCosts, machine: Machine, chunk_tokens: int) -> tuple[float, Bound] | None:
    """The best figure that a point could show, in its unit, and what bounds it; None where nothing does."""
    prompts = [point.prompt_tokens] * point.num_sequences
    context = point.prompt_tokens + point.new_tokens / 2
    if point.kind == "decode":
        limit = decode_step(costs, machine, point.num_sequences, context)
        return point.num_sequences / limit.seconds, limit.bound
    if point.kind == "prefill":
        limit = prefill(costs, machine, prompts, chunk_tokens)
        return sum(prompts) / limit.seconds, limit.bound
    if point.kind == "throughput":
        step = decode_step(costs, machine, point.num_sequences, context)
        limit = prefill(costs, machine, prompts, chunk_tokens)
        for _ in range(point.new_tokens - 1):
            limit += step
        return point.num_sequences * point.new_tokens / limit.seconds, limit.bound
    return None


def _limit(machine: Machine, num_bytes: float, operations: float) -> Limit:
    memory = num_bytes / machine.read_bytes_per_second
    compute = operations / machine.operations_per_second
    return Limit(memory, compute, max(memory, compute))


def _seen(context: float, window: int | None) -> float:
    return context if window is None else min(context, window)


def _seen_by_all(length: int, window: int | None) -> int:
    """Tokens that the rows of a prompt see, added up: 1 + 2 + ... up to the window, then the window for each."""
    growing = length if window is None else min(length, window)
    return growing * (growing + 1) // 2 + (length - growing) * (window or 0)
