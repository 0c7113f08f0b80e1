"""Where every byte of a runner's memory goes: the planner counts from here, the runner allocates from here.

The native decoder's weights lie in one arena in the order of execution, each piece on a 64-byte boundary. The formats
themselves are described in ``native/formats.h``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ullage.base.errors import ConfigError
from ullage.kernels.program import PANEL_OUTPUTS, MatrixSource, Operator, decoder_program
from ullage.kernels.weight_formats import K_MULTIPLE, TILE_OUTPUTS, WeightFormat, WeightType, matrix_format
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import ModelSpec, expected_tensors

if TYPE_CHECKING:
    from ullage.models.model_file import ModelFile

KVType = Literal["bf16", "int8"]
KV_TYPES: tuple[KVType, ...] = ("bf16", "int8")

ATTENTION_ROWS = 16  # kMaxAttentionRows in native/decoder.h
SPAN_TOKENS = 256  # kSpanTokens
FEW_ROWS = 4  # kFewRows
SPARE_ROWS = 16  # kSpareRows
MAX_PARTS = 16  # kMaxParts
SAMPLE_BLOCK = 64  # kSampleBlock in native/sampling_batch.h
SAMPLE_BINS = 1024  # kSampleBins
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    source: MatrixSource
    format: WeightFormat
    outputs: int
    """Padded to whole tiles."""
    k: int
    """Padded to whole groups."""
    offset: int
    num_bytes: int
    carries: bool
    """Whether blocks of the file are carried over; else floats are rounded."""


@dataclass(frozen=True, slots=True)
class PackedVector:
    """float32 values of one or more canonical tensors, one after another."""

    sources: tuple[str, ...]
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class PackedOperator:
    """An operator and where its weights lie."""

    operator: Operator
    matrix: PackedMatrix | None
    vectors: dict[str, PackedVector]


@dataclass(frozen=True, slots=True)
class WeightLayout:
    operators: tuple[PackedOperator, ...]
    num_bytes: int

    def matrices(self) -> list[PackedMatrix]:
        """Each once, though the embedding may serve two operators."""
        return list({each.matrix.offset: each.matrix for each in self.operators if each.matrix}.values())

    def bytes_by_format(self) -> dict[str, int]:
        """Bytes of matrices by the name of their format, the largest first."""
        totals: dict[str, int] = {}
        for matrix in self.matrices():
            totals[matrix.format.name] = totals.get(matrix.format.name, 0) + matrix.num_bytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


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


def weight_layout(spec: ModelSpec, weight_type: WeightType, stored_types: Mapping[str, str]) -> WeightLayout:
    """The arena of one model: everything in the order in which a step reads it.

    :param stored_types: type in the file by canonical tensor name
    """
    shapes = expected_tensors(spec)
    placed: dict[MatrixSource, PackedMatrix] = {}
    operators: list[PackedOperator] = []
    end = 0

    def take(num_bytes: int) -> int:
        nonlocal end
        offset = end
        end = _round_up(offset + num_bytes, ALIGNMENT)
        return offset

    def place(source: MatrixSource) -> PackedMatrix:
        if source not in placed:
            types = [stored_types[rows.tensor] for rows in source.rows]
            is_vocabulary = source.rows[0].tensor in ("embed", "lm_head")
            form = matrix_format(weight_type, types, is_vocabulary=is_vocabulary)
            outputs, k = _round_up(source.outputs, TILE_OUTPUTS), _round_up(source.k, K_MULTIPLE)
            num_bytes = outputs // TILE_OUTPUTS * form.tile_bytes(k)
            carries = weight_type == "file" and form.name != "bf16"
            placed[source] = PackedMatrix(source, form, outputs, k, take(num_bytes), num_bytes, carries)
        return placed[source]

    for operator in decoder_program(spec):
        vectors: dict[str, PackedVector] = {}
        for name, sources in operator.vectors.items():
            length = sum(math.prod(shapes[tensor]) for tensor in sources)
            vectors[name] = PackedVector(sources, length, take(4 * length))
        operators.append(PackedOperator(operator, place(operator.matrix) if operator.matrix else None, vectors))
    return WeightLayout(tuple(operators), end)


def tensor_types(model: ModelFile) -> dict[str, str]:
    """Type in the file by canonical tensor name."""
    return {name: model.stored_type(name) for name in model.tensor_names()}


def workspace_layout(
    spec: ModelSpec, max_num_tokens: int, num_threads: int, block_size: int, kv_type: KVType
) -> WorkspaceLayout:
    """Scratch memory of a step of at most ``max_num_tokens`` tokens."""
    rows = max_num_tokens
    rows_and_own = rows + num_threads * FEW_ROWS
    ropes = len({layer.rope for layer in spec.layers})
    hidden, intermediate = _round_up(spec.hidden_size, K_MULTIPLE), _round_up(spec.intermediate_size, K_MULTIPLE)
    max_k = max(hidden, _round_up(spec.q_size, K_MULTIPLE), intermediate)
    ld_qkv = _round_up(spec.q_size + 2 * spec.kv_size, TILE_OUTPUTS)
    attention_bytes = ATTENTION_ROWS * 4 * 2 * (spec.head_size + SPAN_TOKENS) + 2 * 64
    if kv_type == "int8":  # keys or values of a block as bf16, scales of a span
        attention_bytes += block_size * spec.head_size * 2 + 4 * 2 * SPAN_TOKENS
    thread_bytes = attention_bytes + TILE_OUTPUTS * max_k * 2 + 4 * 2 * hidden
    sizes = {
        "x": rows_and_own * spec.hidden_size * 4,
        "branch": rows * (spec.hidden_size + TILE_OUTPUTS) * 4,
        "qkv": rows * ld_qkv * 4,
        "attention": rows * spec.q_size * 4,
        "gated": rows * spec.intermediate_size * 4,
        "activations": (rows_and_own + SPARE_ROWS) * max_k * 4,
        "rope": ropes * rows * spec.head_size * 4,
        "parts": FEW_ROWS * spec.num_heads * MAX_PARTS * (spec.head_size + PANEL_OUTPUTS) * 4,
        "per_thread": num_threads * thread_bytes,
        "sampling": num_threads * sampling_scratch_bytes(spec.vocab_size),
    }
    offsets: dict[str, int] = {}
    end = 0
    for name, num_bytes in sizes.items():
        offsets[name] = end
        end = _round_up(end + num_bytes, ALIGNMENT)
    return WorkspaceLayout(offsets, end)


def sampling_scratch_bytes(vocab_size: int) -> int:
    """What one thread needs to sample one row: a copy of the logits, their weights, three numbers for each block of
    logits, the bins of a selection."""
    num_blocks = _round_up(vocab_size, 16 * SAMPLE_BLOCK) // SAMPLE_BLOCK
    return num_blocks * (SAMPLE_BLOCK * (4 + 8) + 4 + 4 + 8) + SAMPLE_BINS * (8 + 8 + 4 + 4)


def kv_block_bytes(spec: ModelSpec, block_size: int, kv_type: KVType) -> int:
    """Bytes of one block: 2 (K and V) x layers of a group x KV heads x block size x (head size x bytes each + its
    scale)."""
    head_bytes = spec.head_size * 2 if kv_type == "bf16" else spec.head_size + 4
    return 2 * _group_size(spec) * spec.num_kv_heads * block_size * head_bytes


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
    stored_types: Mapping[str, str],
    kv_type: KVType,
    max_num_batched_tokens: int,
    num_threads: int,
) -> dict[str, int]:
    """Bytes by ledger account that a ``NativeRunner`` allocates, exactly."""
    return {
        "weights": weight_layout(spec, weight_type, stored_types).num_bytes,
        "kv_pool": num_blocks * kv_block_bytes(spec, block_size, kv_type),
        "workspace": workspace_layout(spec, max_num_batched_tokens, num_threads, block_size, kv_type).num_bytes,
        "logits": logits_bytes(spec, max_num_seqs),
    }


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step
