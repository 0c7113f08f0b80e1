"""The Python door to the C++ kernels, and the only file that imports them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ConfigError, EngineError
from ullage.kernels.layout import PANEL_OUTPUTS, PackedMatrix, PackedVector, WeightLayout, WorkspaceLayout
from ullage.kernels.reference import inverse_frequencies
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import ModelSpec, expected_tensors

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


def native_unavailable_reason() -> str | None:
    """Why the kernels can't be used; None when they can."""
    if _native is None and find_spec("ullage.kernels._native") is None:
        return "they were not compiled when Ullage was installed: `pip install -v` shows why"
    return _import_error


def native_isas() -> list[str]:
    """Instruction sets of this processor that the kernels know, best first; empty without kernels."""
    return list(_native.isas()) if _native is not None else []


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
        self._logits: NDArray[np.float32] = np.frombuffer(logits, np.float32).reshape(
            -1, _padded_vocabulary(layout, spec)
        )
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
        )
        self._add_ropes(spec)
        self._decoder.set_workspace(max_num_tokens, workspace_layout.offsets)
        for matrix in layout.matrices:
            self._decoder.set_matrix(matrix.layer, matrix.name, matrix.offset, layout.weight_type)
        if spec.tied_embeddings:
            embed = next(m for m in layout.matrices if m.name == "embed")
            self._decoder.set_matrix(-1, "lm_head", embed.offset, layout.weight_type)
        for vector in layout.vectors:
            self._decoder.set_vector(vector.layer, vector.name, vector.offset)
        pack_weights(model, layout, arena)

    @property
    def isa(self) -> str:
        return str(self._decoder.isa)

    def _add_ropes(self, spec: ModelSpec) -> None:
        ropes = list(dict.fromkeys(layer.rope for layer in spec.layers))
        for rope in ropes:
            self._decoder.add_rope(inverse_frequencies(rope, spec.head_size), rope.attention_factor)
        for table, group in enumerate(layer_groups(spec)):
            for pool_layer, i in enumerate(group.layers):
                rope_index = ropes.index(spec.layers[i].rope)
                self._decoder.set_layer(i, group.window or 0, rope_index, table, pool_layer)

    def step(
        self,
        token_ids: IntArray,
        positions: IntArray,
        seq_starts: IntArray,
        block_tables: IntArray,
        table_starts: IntArray,
        logit_rows: IntArray,
    ) -> NDArray[np.float32]:
        """Runs the rows of all sequences, one sequence after another.

        :param token_ids: ``[rows]``
        :param positions: ``[rows]``, consecutive within a sequence
        :param seq_starts: ``[sequences + 1]`` first row of each sequence, then the number of rows
        :param block_tables: all block tables, one after another; -1 stands for a block that no row can see
        :param table_starts: ``[layer groups, sequences]``, flat: where each table begins
        :param logit_rows: ascending rows whose logits are wanted
        :returns: ``[logit rows, vocabulary]``, a view that the next step overwrites
        :raises EngineError: the arrays don't describe a step this decoder can run
        """
        try:
            self._decoder.step(token_ids, positions, seq_starts, block_tables, table_starts, logit_rows)
        except ValueError as error:
            raise EngineError(f"native step refused: {error}") from error
        return self._logits[: len(logit_rows), : self._spec.vocab_size]


def pack_weights(model: ModelFile, layout: WeightLayout, arena: NDArray[np.uint8]) -> None:
    """Reads tensor by tensor and packs each into its place."""
    for matrix in layout.matrices:
        _pack_matrix(model, matrix, layout, arena)
    for vector in layout.vectors:
        _copy_vector(model, vector, arena)


def _pack_matrix(model: ModelFile, matrix: PackedMatrix, layout: WeightLayout, arena: NDArray[np.uint8]) -> None:
    shapes = expected_tensors(model.spec)
    for source in matrix.sources:
        num_rows = shapes[source.tensor][0]
        for first, rows in _pieces(model, source.tensor, num_rows, matrix.k):
            _native.pack(
                arena,
                matrix.offset,
                matrix.outputs,
                matrix.k,
                layout.weight_type,
                rows,
                source.first_output + first // PANEL_OUTPUTS * source.group_stride,
                source.group_stride,
            )


def _pieces(model: ModelFile, name: str, num_rows: int, k: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(first row, rows). A large matrix, an embedding above all, is never in memory whole as float32."""
    if num_rows * k <= PIECE_ELEMENTS:
        yield 0, model.read_tensor(name)
        return
    step = max(PIECE_ELEMENTS // k // PANEL_OUTPUTS, 1) * PANEL_OUTPUTS
    for first in range(0, num_rows, step):
        yield first, model.read_rows(name, first, min(step, num_rows - first))


def _copy_vector(model: ModelFile, vector: PackedVector, arena: NDArray[np.uint8]) -> None:
    values = np.concatenate([model.read_tensor(name) for name in vector.sources]).astype(np.float32, copy=False)
    assert values.shape == (vector.length,)
    arena[vector.offset : vector.offset + 4 * vector.length] = values.view(np.uint8)


def _bytes_of(memory: memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(memory, np.uint8)


def _padded_vocabulary(layout: WeightLayout, spec: ModelSpec) -> int:
    name = "embed" if spec.tied_embeddings else "lm_head"
    return next(matrix.outputs for matrix in layout.matrices if matrix.name == name)


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
