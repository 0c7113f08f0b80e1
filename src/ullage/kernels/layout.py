"""Where every byte of a runner's memory goes: the planner counts from here, the runner allocates from here.

The native decoder's weights lie in one arena in the order of execution, each piece on a 64-byte boundary. The panel
format itself is described in ``native/decoder.h``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ullage.base.errors import ConfigError
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import ModelSpec, expected_tensors

WeightType = Literal["bf16", "int8"]
WEIGHT_TYPES: tuple[WeightType, ...] = ("bf16", "int8")

PANEL_OUTPUTS = 16
TILE_OUTPUTS = 32
GROUP_TERMS = 32  # of int8 weights share a scale
KV_ELEMENT_BYTES = 2  # bf16
ATTENTION_ROWS = 12  # kMaxAttentionRows in native/decoder.h
SPAN_TOKENS = 256  # kSpanTokens
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class RowPlacement:
    """Which rows of a packed matrix a canonical tensor fills: row r goes to
    ``first_output + r // 16 * group_stride + r % 16``."""

    tensor: str
    first_output: int
    group_stride: int = PANEL_OUTPUTS


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    name: str
    layer: int
    """-1 outside the layers."""
    sources: tuple[RowPlacement, ...]
    outputs: int
    """Padded to whole tiles."""
    k: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PackedVector:
    """float32 values of one or more canonical tensors, one after another."""

    name: str
    layer: int
    sources: tuple[str, ...]
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class WeightLayout:
    weight_type: WeightType
    matrices: tuple[PackedMatrix, ...]
    vectors: tuple[PackedVector, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class WorkspaceLayout:
    """Offsets of the buffers of one step (names as in ``native/decoder.h``)."""

    offsets: dict[str, int]
    num_bytes: int


def check_runnable(spec: ModelSpec, block_size: int) -> None:
    """The native kernels work on whole panels.

    :raises ConfigError: a size that isn't a multiple of 16 or too large, or a block size they can't use
    """
    sizes = {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "head_size": spec.head_size,
    }
    for name, size in sizes.items():
        if size % PANEL_OUTPUTS:
            raise ConfigError(
                f"{spec.name}: the native kernels need {name} to be a multiple of 16, it is {size}",
                hint="use --runner numpy",
            )
    if spec.head_size > 256:
        raise ConfigError(
            f"{spec.name}: the native kernels know heads up to 256, this model has {spec.head_size}",
            hint="use --runner numpy",
        )
    if block_size % PANEL_OUTPUTS or not 0 < block_size <= 256:
        raise ConfigError(f"block size {block_size} isn't a multiple of 16 up to 256", hint="use 16, 32 or 64")


def matrix_bytes(outputs: int, k: int, weight_type: WeightType) -> int:
    """Bytes of a packed matrix; int8 adds one float32 scale per output and group of 32 k."""
    return outputs * k * 2 if weight_type == "bf16" else outputs * k + outputs * -(-k // GROUP_TERMS) * 4


def weight_layout(spec: ModelSpec, weight_type: WeightType) -> WeightLayout:
    """The arena of one model."""
    arena = _WeightArena(weight_type)
    arena.matrix("embed", -1, [RowPlacement("embed", 0)], spec.vocab_size, spec.hidden_size)
    for i in range(spec.num_layers):
        _lay_out_layer(arena, spec, i)
    arena.vector("final_norm", -1, ["final_norm"], spec.hidden_size)
    if not spec.tied_embeddings:
        arena.matrix("lm_head", -1, [RowPlacement("lm_head", 0)], spec.vocab_size, spec.hidden_size)
    return arena.finish()


def _lay_out_layer(arena: _WeightArena, spec: ModelSpec, i: int) -> None:
    def tensor(name: str) -> str:
        return f"layers.{i}.{name}"

    q_size, kv_size, inter = spec.q_size, spec.kv_size, spec.intermediate_size
    arena.vector("attn_norm", i, [tensor("attn_norm")], spec.hidden_size)
    qkv = [
        RowPlacement(tensor("q"), 0),
        RowPlacement(tensor("k"), q_size),
        RowPlacement(tensor("v"), q_size + kv_size),
    ]
    arena.matrix("qkv", i, qkv, q_size + 2 * kv_size, spec.hidden_size)
    if spec.qkv_bias:
        biases = [tensor("q_bias"), tensor("k_bias"), tensor("v_bias")]
        arena.vector("qkv_bias", i, biases, q_size + 2 * kv_size)
    if spec.qk_norm:
        arena.vector("q_norm", i, [tensor("q_norm")], spec.head_size)
        arena.vector("k_norm", i, [tensor("k_norm")], spec.head_size)
    arena.matrix("o", i, [RowPlacement(tensor("o"), 0)], spec.hidden_size, q_size)
    if spec.post_norms:
        arena.vector("post_attn_norm", i, [tensor("post_attn_norm")], spec.hidden_size)
    arena.vector("ffn_norm", i, [tensor("ffn_norm")], spec.hidden_size)
    # 16 gate rows, then the 16 up rows they are multiplied with: the product is taken where both are at hand.
    gate_up = [
        RowPlacement(tensor("gate"), 0, group_stride=TILE_OUTPUTS),
        RowPlacement(tensor("up"), PANEL_OUTPUTS, group_stride=TILE_OUTPUTS),
    ]
    arena.matrix("gate_up", i, gate_up, 2 * inter, spec.hidden_size)
    arena.matrix("down", i, [RowPlacement(tensor("down"), 0)], spec.hidden_size, inter)
    if spec.post_norms:
        arena.vector("post_ffn_norm", i, [tensor("post_ffn_norm")], spec.hidden_size)


class _WeightArena:
    """Hands out consecutive pieces."""

    def __init__(self, weight_type: WeightType) -> None:
        self._type = weight_type
        self._matrices: list[PackedMatrix] = []
        self._vectors: list[PackedVector] = []
        self._end = 0

    def _take(self, num_bytes: int) -> int:
        offset = self._end
        self._end = _round_up(offset + num_bytes, ALIGNMENT)
        return offset

    def matrix(self, name: str, layer: int, sources: list[RowPlacement], rows: int, k: int) -> None:
        outputs = _round_up(rows, TILE_OUTPUTS)
        num_bytes = matrix_bytes(outputs, k, self._type)
        offset = self._take(num_bytes)
        self._matrices.append(PackedMatrix(name, layer, tuple(sources), outputs, k, offset, num_bytes))

    def vector(self, name: str, layer: int, sources: list[str], length: int) -> None:
        self._vectors.append(PackedVector(name, layer, tuple(sources), length, self._take(4 * length)))

    def finish(self) -> WeightLayout:
        return WeightLayout(self._type, tuple(self._matrices), tuple(self._vectors), self._end)


def workspace_layout(spec: ModelSpec, max_num_tokens: int, num_threads: int) -> WorkspaceLayout:
    """Scratch memory of a step of at most ``max_num_tokens`` tokens."""
    rows = max_num_tokens
    ropes = len({layer.rope for layer in spec.layers})
    max_k = max(spec.hidden_size, spec.q_size, spec.intermediate_size)
    ld_qkv = _round_up(spec.q_size + 2 * spec.kv_size, TILE_OUTPUTS)
    thread_bytes = ATTENTION_ROWS * 4 * 2 * (spec.head_size + SPAN_TOKENS) + 2 * 64
    sizes = {
        "x": rows * spec.hidden_size * 4,
        "branch": rows * (spec.hidden_size + TILE_OUTPUTS) * 4,
        "qkv": rows * ld_qkv * 4,
        "attention": rows * spec.q_size * 4,
        "gated": rows * spec.intermediate_size * 4,
        "activations": rows * max_k * 4,
        "rope": ropes * rows * spec.head_size * 4,
        "per_thread": num_threads * thread_bytes,
    }
    offsets: dict[str, int] = {}
    end = 0
    for name, num_bytes in sizes.items():
        offsets[name] = end
        end = _round_up(end + num_bytes, ALIGNMENT)
    return WorkspaceLayout(offsets, end)


def kv_block_bytes(spec: ModelSpec, block_size: int) -> int:
    """Bytes of one block: 2 (K and V) x layers of a group x KV heads x head size x block size x 2 (bf16)."""
    return 2 * _group_size(spec) * spec.kv_size * block_size * KV_ELEMENT_BYTES


def logits_bytes(spec: ModelSpec, max_num_seqs: int) -> int:
    """float32 logits of one row per sequence, rows padded to whole tiles."""
    return max_num_seqs * _round_up(spec.vocab_size, TILE_OUTPUTS) * 4


def numpy_block_bytes(spec: ModelSpec, block_size: int) -> int:
    """As ``kv_block_bytes``, in float32."""
    return 2 * _group_size(spec) * spec.kv_size * block_size * 4


def _group_size(spec: ModelSpec) -> int:
    return len(layer_groups(spec)[0].layers)


def numpy_memory(spec: ModelSpec, num_blocks: int, block_size: int, max_num_seqs: int) -> dict[str, int]:
    """Bytes by ledger account that a ``NumpyRunner`` allocates, exactly: everything in float32, nothing padded.

    ``workspace`` is 0: numpy takes its temporaries from the process's heap, where the ledger can't count them. They
    are bounded by the size of one step: a few arrays of [tokens in the step, intermediate_size], one request's keys
    and values of one layer, and the scores of a tile of queries.
    """
    return {
        "weights": sum(math.prod(shape) for shape in expected_tensors(spec).values()) * 4,
        "kv_pool": num_blocks * numpy_block_bytes(spec, block_size),
        "workspace": 0,
        "logits": max_num_seqs * spec.vocab_size * 4,
    }


def native_memory(
    spec: ModelSpec,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
    *,
    weight_type: WeightType,
    max_num_batched_tokens: int,
    num_threads: int,
) -> dict[str, int]:
    """Bytes by ledger account that a ``NativeRunner`` allocates, exactly."""
    return {
        "weights": weight_layout(spec, weight_type).num_bytes,
        "kv_pool": num_blocks * kv_block_bytes(spec, block_size),
        "workspace": workspace_layout(spec, max_num_batched_tokens, num_threads).num_bytes,
        "logits": logits_bytes(spec, max_num_seqs),
    }


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step
