"""The readable runner: a decoder-only transformer in numpy, in the order of the paper.

It is the specification of the native runner, and runs in its stead where there is no compiler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ullage.engine.sampler import sample
from ullage.engine.step import SampledToken, ScheduledRequest, ScheduledStep
from ullage.kernels import reference as kernel
from ullage.kernels.reference import Floats, Integers
from ullage.models.layer_groups import layer_groups
from ullage.models.model_file import ModelFile
from ullage.models.spec import LayerSpec, RopeSpec, expected_tensors
from ullage.plan.ledger import MemoryLedger

FLOAT_BYTES = 4

LayerWeights = Mapping[str, Floats]
RopeTables = Mapping[RopeSpec, tuple[Floats, Floats]]


class NumpyRunner:
    """Implements ``ModelRunner``. All in float32.

    :param max_num_batched_tokens: tokens in one step at most
    :param max_num_seqs: requests in one step at most
    :raises EngineError: the ledger's plan has no room for what ``numpy_memory`` says
    :raises ModelFileError: a tensor is damaged
    """

    name = "numpy (reference)"

    def __init__(
        self,
        model: ModelFile,
        ledger: MemoryLedger,
        *,
        num_blocks: int,
        block_size: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
    ) -> None:
        self.spec = spec = model.spec
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._weights = _load_weights(model, ledger)
        self._layer_weights = [_layer_weights(self._weights, index) for index in range(spec.num_layers)]
        groups = layer_groups(spec)
        self._kv_pool = _allocate(
            ledger,
            "kv_pool",
            # [layers of a group, keys and values, blocks, block_size, kv_heads, head_size]
            (len(groups[0].layers), 2, num_blocks, block_size, spec.num_kv_heads, spec.head_size),
        )
        self._places = {
            layer: (number, slot) for number, group in enumerate(groups) for slot, layer in enumerate(group.layers)
        }
        """Of each layer: its group, and which of the group's layers it is."""
        self._logits = _allocate(ledger, "logits", (max_num_seqs, spec.vocab_size))

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        return sample(self.compute_logits(step), [request for request in step.requests if request.needs_logits])

    def compute_logits(self, step: ScheduledStep) -> Floats:
        """Writes the step's keys and values.

        :returns: [requests with needs_logits, vocab], valid until the next step
        """
        assert 0 < step.num_tokens <= self._max_num_batched_tokens, step.num_tokens
        positions = np.concatenate([_positions(request) for request in step.requests])
        tables = list(zip(*(request.block_tables for request in step.requests), strict=True))
        slots = [self._slots(step, group) for group in tables]
        ropes = {
            rope: kernel.rope_tables(rope, self.spec.head_size, positions)
            for rope in {layer.rope for layer in self.spec.layers}
        }

        token_ids = np.concatenate([np.asarray(request.token_ids, dtype=np.int64) for request in step.requests])
        hidden = self._weights["embed"][token_ids] * np.float32(self.spec.embedding_scale)
        for index, (layer, weights) in enumerate(zip(self.spec.layers, self._layer_weights, strict=True)):
            group, slot = self._places[index]
            keys, values = self._kv_pool[slot]
            hidden = hidden + self._attention(
                layer, weights, hidden, step, ropes, tables[group], slots[group], keys, values
            )
            hidden = hidden + self._feed_forward(weights, hidden)
        return self._head(hidden[_last_rows(step)])

    def stage_seconds(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._weights = {}
        self._layer_weights = []
        self._kv_pool = self._logits = np.empty(0, dtype=np.float32)

    def _attention(
        self,
        layer: LayerSpec,
        weights: LayerWeights,
        hidden: Floats,
        step: ScheduledStep,
        ropes: RopeTables,
        tables: Sequence[Sequence[int]],
        slots: tuple[Integers, Integers],
        keys: Floats,
        values: Floats,
    ) -> Floats:
        """:param hidden: [tokens, hidden_size]; :param tables: each request's block table for this layer;
        :param keys: this layer's blocks, as ``values``
        """
        spec = self.spec
        x = self._norm(hidden, weights["attn_norm"])
        q, k, v = (
            kernel.linear(x, weights[name], weights.get(f"{name}_bias")).reshape(len(x), -1, spec.head_size)
            for name in ("q", "k", "v")
        )
        if spec.qk_norm:
            q, k = self._norm(q, weights["q_norm"]), self._norm(k, weights["k_norm"])
        q, keys[slots] = kernel.apply_rope(q, *ropes[layer.rope]), kernel.apply_rope(k, *ropes[layer.rope])
        values[slots] = v

        mixed, start = np.empty_like(q), 0
        for request, table in zip(step.requests, tables, strict=True):  # here only, requests differ in shape
            rows = slice(start, start + len(request.token_ids))
            mixed[rows] = kernel.paged_attention(
                q[rows],
                keys,
                values,
                table,
                first_position=request.num_computed_tokens,
                scale=spec.score_scale,
                window=layer.window,
            )
            start = rows.stop
        output = kernel.linear(mixed.reshape(len(x), spec.q_size), weights["o"])
        return self._norm(output, weights["post_attn_norm"]) if spec.post_norms else output

    def _feed_forward(self, weights: LayerWeights, hidden: Floats) -> Floats:
        x = self._norm(hidden, weights["ffn_norm"])
        gate, up = kernel.linear(x, weights["gate"]), kernel.linear(x, weights["up"])
        output = kernel.linear(kernel.gated_product(gate, up, self.spec.activation), weights["down"])
        return self._norm(output, weights["post_ffn_norm"]) if self.spec.post_norms else output

    def _head(self, hidden: Floats) -> Floats:
        """:param hidden: [requests with needs_logits, hidden_size]"""
        matrix = self._weights["embed" if self.spec.tied_embeddings else "lm_head"]
        logits = self._logits[: len(hidden)]
        np.matmul(self._norm(hidden, self._weights["final_norm"]), matrix.T, out=logits)
        return logits

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        return kernel.rms_norm(x, weight, self.spec.norm_eps)

    def _slots(self, step: ScheduledStep, tables: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
        """(block, offset) of every token of the step in one layer group, each [tokens]."""
        slots = [
            kernel.token_slots(table, _positions(request), self._block_size)
            for request, table in zip(step.requests, tables, strict=True)
        ]
        blocks, offsets = zip(*slots, strict=True)
        return np.concatenate(blocks), np.concatenate(offsets)


def _positions(request: ScheduledRequest) -> Integers:
    return np.arange(request.num_computed_tokens, request.num_computed_tokens + len(request.token_ids))


def _last_rows(step: ScheduledStep) -> Integers:
    """The last row of each request that needs logits."""
    ends = np.cumsum([len(request.token_ids) for request in step.requests])
    return ends[[request.needs_logits for request in step.requests]] - 1


def _allocate(ledger: MemoryLedger, account: str, shape: tuple[int, ...]) -> Floats:
    memory = ledger.allocate(account, math.prod(shape) * FLOAT_BYTES)
    return np.frombuffer(memory, dtype=np.float32).reshape(shape)


def _load_weights(model: ModelFile, ledger: MemoryLedger) -> dict[str, Floats]:
    """All tensors by canonical name, in one allocation. At most one tensor is held twice at any moment."""
    shapes = expected_tensors(model.spec)
    arena = _allocate(ledger, "weights", (sum(math.prod(shape) for shape in shapes.values()),))
    weights: dict[str, Floats] = {}
    start = 0
    for name in model.tensor_names():
        stop = start + math.prod(shapes[name])
        weights[name] = arena[start:stop].reshape(shapes[name])
        weights[name][...] = model.read_tensor(name)
        start = stop
    assert weights.keys() == shapes.keys(), "the reader promises each expected tensor exactly once"
    return weights


def _layer_weights(weights: Mapping[str, Floats], index: int) -> dict[str, Floats]:
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
