from __future__ import annotations

from dataclasses import replace

import pytest
from tests.block_model import BLOCK_TYPES, BlockModel
from tests.packed_weights import packed_bytes
from tests.random_model import small_spec

from ullage.kernels.layout import (
    ALIGNMENT,
    WeightLayout,
    kv_block_bytes,
    native_memory,
    tensor_types,
    weight_layout,
    workspace_layout,
)
from ullage.kernels.weight_formats import WEIGHT_TYPES
from ullage.models.spec import ModelSpec, expected_tensors

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]


def spec_of(architecture: str) -> ModelSpec:
    """Sizes that fill no whole tile and no whole group."""
    return replace(small_spec(architecture), hidden_size=80, intermediate_size=112, head_size=16)


def layout_of(architecture: str, weight_type: str, block_type: str = "F32") -> WeightLayout:
    spec = spec_of(architecture)
    types = {name: block_type if len(shape) == 2 else "F32" for name, shape in expected_tensors(spec).items()}
    return weight_layout(spec, weight_type, types)


every_layout = pytest.mark.parametrize(
    ("weight_type", "block_type"),
    [*((each, "F32") for each in WEIGHT_TYPES), *(("file", each) for each in BLOCK_TYPES)],
)


@every_layout
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_pieces_fill_the_arena_without_overlap(architecture, weight_type, block_type):
    layout = layout_of(architecture, weight_type, block_type)
    vectors = [vector for operator in layout.operators for vector in operator.vectors.values()]
    pieces = sorted(
        [(matrix.offset, matrix.num_bytes) for matrix in layout.matrices()]
        + [(vector.offset, 4 * vector.length) for vector in vectors]
    )
    end = 0
    for offset, num_bytes in pieces:
        assert offset % ALIGNMENT == 0
        assert 0 <= offset - end < ALIGNMENT
        end = offset + num_bytes
    assert 0 <= layout.num_bytes - end < ALIGNMENT
    assert layout.num_bytes % ALIGNMENT == 0


@every_layout
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_has_one_place(architecture, weight_type, block_type):
    layout = layout_of(architecture, weight_type, block_type)
    placed = [rows.tensor for matrix in layout.matrices() for rows in matrix.source.rows]
    placed += [name for each in layout.operators for vector in each.vectors.values() for name in vector.sources]
    assert sorted(placed) == sorted(expected_tensors(spec_of(architecture)))


@every_layout
def test_a_matrix_takes_what_its_padded_tiles_take(weight_type, block_type):
    layout = layout_of("gemma3", weight_type, block_type)
    for matrix in layout.matrices():
        assert (matrix.outputs % 32, matrix.k % 32) == (0, 0)
        assert matrix.source.outputs <= matrix.outputs < matrix.source.outputs + 32
        assert matrix.source.k <= matrix.k < matrix.source.k + 32
        assert matrix.num_bytes == packed_bytes(matrix.format.name, matrix.outputs, matrix.k)
        assert matrix.carries == (weight_type == "file" and block_type != "F32")
    assert sum(layout.bytes_by_format().values()) == sum(matrix.num_bytes for matrix in layout.matrices())


def test_formats_are_named_by_their_bytes_the_largest_first():
    layout = layout_of("qwen3", "int4")
    totals = layout.bytes_by_format()
    assert list(totals) == ["int4_min", "int8"]
    assert totals["int8"] == 2 * packed_bytes("int8", 64, 96)  # the embedding and the output matrix: 61 tokens, k of 80


def test_a_shared_embedding_is_held_once():
    tied, own = layout_of("gemma3", "bf16"), layout_of("llama", "bf16")
    assert tied.operators[0].matrix is tied.operators[-1].matrix
    assert own.operators[0].matrix is not own.operators[-1].matrix


def test_types_come_from_the_file():
    model = BlockModel(spec_of("llama"), {"q": "Q8_0", "embed": "Q6_K"})
    types = tensor_types(model)
    assert types.keys() == expected_tensors(model.spec).keys()
    assert (types["layers.2.q"], types["embed"], types["layers.2.k"]) == ("Q8_0", "Q6_K", "F32")


@pytest.mark.parametrize(("kv_type", "head_bytes"), [("bf16", 2 * 16), ("int8", 16 + 4)])
@pytest.mark.parametrize(("architecture", "layers"), [("llama", 3), ("gemma3", 1)])
def test_a_block_holds_keys_and_values_of_every_layer_of_a_group_and_every_head(
    architecture, layers, kv_type, head_bytes
):
    """Of gemma3's three layers here two have a window: groups of one."""
    assert kv_block_bytes(spec_of(architecture), 48, kv_type) == 48 * 2 * layers * 2 * head_bytes


def test_the_workspace_grows_with_tokens_and_threads():
    spec = spec_of("llama")

    def size(tokens: int, threads: int, block_size: int = 16, kv_type: str = "bf16") -> int:
        layout = workspace_layout(spec, tokens, threads, block_size, kv_type)
        assert all(offset % ALIGNMENT == 0 for offset in layout.offsets.values())
        return layout.num_bytes

    assert size(64, 2) < size(65, 2) < size(65, 3)
    assert size(64, 2) < size(64, 2, 16, "int8") < size(64, 2, 256, "int8")  # room for a widened block
    assert size(64, 2, 256) == size(64, 2)


def test_the_accounts_are_what_the_layouts_say():
    spec, types = spec_of("llama"), dict.fromkeys(expected_tensors(spec_of("llama")), "Q8_0")
    memory = native_memory(
        spec, 7, 16, 5, weight_type="file", stored_types=types, kv_type="int8", max_num_batched_tokens=64, num_threads=2
    )
    assert memory == {
        "weights": weight_layout(spec, "file", types).num_bytes,
        "kv_pool": 7 * kv_block_bytes(spec, 16, "int8"),
        "workspace": workspace_layout(spec, 64, 2, 16, "int8").num_bytes,
        "logits": 5 * 64 * 4,
    }
