"""The Python door to the C++ kernels, and the only file that imports them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ConfigError, EngineError, ModelFileError
from ullage.kernels.layout import (
    ALIGNMENT,
    KVType,
    PackedMatrix,
    PackedVector,
    WeightLayout,
    WorkspaceLayout,
    sampling_scratch_bytes,
)
from ullage.kernels.program import PANEL_OUTPUTS, Rows
from ullage.kernels.reference import inverse_frequencies
from ullage.kernels.sampling import SAMPLED_ROW, SamplingBatch, as_bytes
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import ModelSpec, RopeSpec, expected_tensors

if TYPE_CHECKING:
    from ullage.models.model_file import ModelFile

try:
    from ullage.kernels import _native  # type: ignore[attr-defined,unused-ignore]
except ImportError as error:  # not compiled, or made for another system
    _native = None
    _import_error: str | None = str(error)
else:
    _import_error = None

IntArray = NDArray[np.int32]

PIECE_ELEMENTS = 1 << 20  # 4 MiB of float32
NO_SAMPLING = SamplingBatch.of([])


def native_unavailable_reason() -> str | None:
    """Why the kernels can't be used; None when they can."""
    if _native is None and find_spec("ullage.kernels._native") is None:
        return "they were not compiled when Ullage was installed: `pip install -v` shows why"
    return _import_error


def native_isas() -> list[str]:
    """Instruction sets of this processor that the kernels know, best first; empty without kernels."""
    return list(_native.isas()) if _native is not None else []


def read_seconds(num_bytes: int, num_threads: int, num_passes: int, prefetch_bytes: int) -> list[float]:
    """Seconds that all threads together take to read so many bytes, for each pass (``native/roofline.h``).

    :raises ConfigError: no kernels
    """
    if _native is None:
        raise ConfigError(f"the native kernels can't be used: {native_unavailable_reason()}")
    return list(_native.read_seconds(num_bytes, num_threads, num_passes, prefetch_bytes))


def peak_operations(isa: str, weight_type: str, num_threads: int) -> float:
    """Operations a second of the instruction that ``isa`` multiplies weights of this type with, on all threads.

    :raises ConfigError: no kernels
    """
    if _native is None:
        raise ConfigError(f"the native kernels can't be used: {native_unavailable_reason()}")
    return float(_native.peak_operations(isa, weight_type, num_threads))


class NativeDecoder:
    """A decoder whose memory the caller has allocated; ``step`` runs all layers with the GIL released.

    :param weights: arena of ``layout.num_bytes`` bytes, filled here from ``model``
    :param isa: force an instruction set; None takes the best this processor has
    :raises ConfigError: no kernels, not that instruction set, or not so many threads
    """

    def __init__(
        self,
        model: ModelFile,
        layout: WeightLayout,
        workspace_layout: WorkspaceLayout,
        *,
        weights: memoryview,
        kv_pool: memoryview,
        workspace: memoryview,
        logits: memoryview,
        block_size: int,
        num_blocks: int,
        max_num_tokens: int,
        num_threads: int,
        kv_type: KVType,
        isa: str | None,
    ) -> None:
        if _native is None:
            raise ConfigError(
                f"the native kernels can't be used: {native_unavailable_reason()}", hint="use --runner numpy"
            )
        if isa is not None and isa not in native_isas():
            raise ConfigError(f"this processor can't run {isa!r}", hint=f"it can run: {', '.join(native_isas())}")
        spec = model.spec
        arena = _bytes_of(weights)
        self._logits: NDArray[np.float32] = np.frombuffer(logits, np.float32).reshape(-1, _padded_vocabulary(layout))
        self._sampled = np.zeros(len(self._logits), SAMPLED_ROW)
        self._sampled_bytes = as_bytes(self._sampled)
        self._spec = spec
        try:
            self._decoder = _native.Decoder(
                arena, _bytes_of(kv_pool), _bytes_of(workspace), _bytes_of(logits), num_threads, isa or ""
            )
        except RuntimeError as error:
            raise ConfigError(f"can't start {num_threads} threads: {error}", hint="use fewer --threads") from error
        self._decoder.set_shape(
            _sizes_of(spec, block_size, num_blocks),
            spec.norm_eps,
            spec.score_scale,
            spec.embedding_scale,
            spec.activation == "gelu_tanh",
            kv_type,
        )
        ropes = self._add_ropes(spec)
        self._add_operators(spec, layout, ropes)
        self._decoder.set_workspace(max_num_tokens, workspace_layout.offsets)
        pack_weights(model, layout, arena, num_threads)

    @property
    def isa(self) -> str:
        return str(self._decoder.isa)

    def stage_seconds(self) -> dict[str, float]:
        """Seconds spent in each kind of operator since the beginning, waiting included."""
        return dict(self._decoder.stage_seconds())

    def _add_ropes(self, spec: ModelSpec) -> list[RopeSpec]:
        ropes = list(dict.fromkeys(layer.rope for layer in spec.layers))
        for rope in ropes:
            self._decoder.add_rope(inverse_frequencies(rope, spec.head_size), rope.attention_factor)
        return ropes

    def _add_operators(self, spec: ModelSpec, layout: WeightLayout, ropes: list[RopeSpec]) -> None:
        places = {
            layer: (table, pool_layer)
            for table, group in enumerate(layer_groups(spec))
            for pool_layer, layer in enumerate(group.layers)
        }
        for packed in layout.operators:
            operator = packed.operator
            layer = max(operator.layer, 0)
            window, rope = spec.layers[layer].window or 0, ropes.index(spec.layers[layer].rope)
            self._decoder.add_operator(operator.kind, window, rope, *places[layer], operator.adds_branch)
            if packed.matrix is not None:
                self._decoder.set_matrix(packed.matrix.offset, packed.matrix.format.name)
            for name, vector in packed.vectors.items():
                self._decoder.set_vector(name, vector.offset)

    def step(
        self,
        token_ids: IntArray,
        positions: IntArray,
        seq_starts: IntArray,
        block_tables: IntArray,
        table_starts: IntArray,
        logit_rows: IntArray,
        sampling: SamplingBatch = NO_SAMPLING,
    ) -> NDArray[Any]:
        """Runs the rows of all sequences, one sequence after another, and samples where logits are wanted.

        :param token_ids: ``[rows]``
        :param positions: ``[rows]``, consecutive within a sequence
        :param seq_starts: ``[sequences + 1]`` first row of each sequence, then the number of rows
        :param block_tables: all block tables, one after another; -1 stands for a block that no row can see
        :param table_starts: ``[layer groups, sequences]``, flat: where each table begins
        :param logit_rows: ascending rows whose logits are wanted
        :param sampling: one row for each of ``logit_rows``, or none: then ``logits`` is what the step leaves
        :returns: ``[rows to sample]`` of ``SAMPLED_ROW``, a view that the next step overwrites
        :raises EngineError: the arrays don't describe a step this decoder can run
        """
        num_sampled = len(sampling.rows)
        try:
            self._decoder.step(
                token_ids,
                positions,
                seq_starts,
                block_tables,
                table_starts,
                logit_rows,
                sampling.row_bytes,
                sampling.token_ids,
                sampling.bias_values,
                sampling.masks,
                self._sampled_bytes[:num_sampled],
            )
        except ValueError as error:
            raise EngineError(f"native step refused: {error}") from error
        return self._sampled[:num_sampled]

    def logits(self, num_rows: int) -> NDArray[np.float32]:
        """Logits of the last step's first ``logit_rows``, as they came from the model.

        :returns: ``[num_rows, vocabulary]``, a view that the next step overwrites
        """
        return self._logits[:num_rows, : self._spec.vocab_size]


def sample_logits(logits: NDArray[np.float32], sampling: SamplingBatch, isa: str) -> NDArray[Any]:
    """Samples without a decoder, on the caller's thread.

    :param logits: ``[rows, vocabulary]``
    :returns: ``[rows]`` of ``SAMPLED_ROW``
    :raises EngineError: the arrays don't fit together
    """
    sampled = np.zeros(len(sampling.rows), SAMPLED_ROW)
    memory = np.empty(sampling_scratch_bytes(logits.shape[1]) + ALIGNMENT, np.uint8)
    scratch = memory[-memory.ctypes.data % ALIGNMENT :]
    rows, token_ids, values = sampling.row_bytes, sampling.token_ids, sampling.bias_values
    masks = sampling.masks
    try:
        _native.sample(isa, logits, rows, token_ids, values, masks, as_bytes(sampled), scratch)
    except ValueError as error:
        raise EngineError(f"native sampling refused: {error}") from error
    return sampled


def pack_weights(model: ModelFile, layout: WeightLayout, arena: NDArray[np.uint8], num_threads: int) -> None:
    """Reads tensors a piece at a time and packs each into its place: no two pieces share a byte.

    :raises ModelFileError: a tensor holds NaN or infinity
    """
    shapes = expected_tensors(model.spec)
    pieces = [
        piece
        for matrix in layout.matrices()
        for source in matrix.source.rows
        for piece in _pieces(matrix, source, *shapes[source.tensor])
    ]
    with ThreadPoolExecutor(num_threads, thread_name_prefix="pack") as threads:
        for _ in threads.map(lambda piece: _pack_piece(model, piece, arena), pieces):
            pass  # an error comes out here
    for operator in layout.operators:
        for vector in operator.vectors.values():
            _copy_vector(model, vector, arena)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one tensor, few enough that an embedding is never in memory whole as float32."""

    matrix: PackedMatrix
    source: Rows
    first_row: int
    num_rows: int


def _pieces(matrix: PackedMatrix, source: Rows, num_rows: int, k: int) -> Iterator[Piece]:
    step = max(PIECE_ELEMENTS // k // PANEL_OUTPUTS, 1) * PANEL_OUTPUTS
    for first in range(0, num_rows, step):
        yield Piece(matrix, source, first, min(step, num_rows - first))


def _pack_piece(model: ModelFile, piece: Piece, arena: NDArray[np.uint8]) -> None:
    matrix, source = piece.matrix, piece.source
    rows = (source.tensor, piece.first_row, piece.num_rows)
    place = (source.first_output + piece.first_row // PANEL_OUTPUTS * source.group_stride, source.group_stride)
    target = (arena, matrix.offset, matrix.outputs, matrix.k, matrix.format.name)
    if not matrix.carries:
        _native.pack(*target, model.read_rows(*rows), *place)
    elif not _native.pack_stored(*target, model.read_stored_rows(*rows), model.stored_type(source.tensor), *place):
        raise ModelFileError(
            f"{model.path}: tensor {source.tensor} holds NaN or infinity",
            hint="the file is damaged; fetch it again",
        )


def _copy_vector(model: ModelFile, vector: PackedVector, arena: NDArray[np.uint8]) -> None:
    values = np.concatenate([model.read_tensor(name) for name in vector.sources]).astype(np.float32, copy=False)
    assert values.shape == (vector.length,)
    arena[vector.offset : vector.offset + 4 * vector.length] = values.view(np.uint8)


def _bytes_of(memory: memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(memory, np.uint8)


def _padded_vocabulary(layout: WeightLayout) -> int:
    head = layout.operators[-1].matrix
    assert head is not None
    return head.outputs


def _sizes_of(spec: ModelSpec, block_size: int, num_blocks: int) -> dict[str, Any]:
    return {
        "hidden": spec.hidden_size,
        "intermediate": spec.intermediate_size,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_size": spec.head_size,
        "num_layers": spec.num_layers,
        "num_tables": len(layer_groups(spec)),
        "vocab": spec.vocab_size,
        "block_size": block_size,
        "num_blocks": num_blocks,
    }
