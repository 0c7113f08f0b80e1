"""Random weights in the shape of a config.json."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ullage.base.errors import ModelFileError
from ullage.models.dummy_model import BLOCK_NUMBERS, DummyModel
from ullage.models.spec import expected_tensors

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40_000,
    "tie_word_embeddings": True,
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_every_tensor_has_its_shape_and_a_steady_scale(path):
    model = DummyModel(path)
    assert model.spec.name == "small"
    shapes = expected_tensors(model.spec)
    assert list(model.tensor_names()) == list(shapes)
    for name, shape in shapes.items():
        values = model.read_tensor(name)
        assert values.shape == shape
        assert values.dtype == np.float32
        if len(shape) == 2:
            assert np.std(values) == pytest.approx(shape[1] ** -0.5, rel=0.1)
    assert model.stored_bytes() == 2 * sum(int(np.prod(shape)) for shape in shapes.values())


def test_a_matrix_is_the_same_in_pieces_and_whole(path):
    model = DummyModel(path)
    whole = model.read_tensor("embed")
    assert whole.size > BLOCK_NUMBERS
    pieces = [model.read_rows("embed", first, 4096 if first < 36864 else 3136) for first in range(0, 40_000, 4096)]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert len(np.unique(whole, axis=0)) == len(whole)


def test_matrices_differ_and_follow_from_the_seed(path):
    one, same, other = DummyModel(path), DummyModel(path), DummyModel(path, seed=1)
    q = one.read_tensor("layers.0.q")
    assert np.array_equal(q, same.read_tensor("layers.0.q"))
    assert not np.array_equal(q, other.read_tensor("layers.0.q"))
    assert not np.array_equal(q, one.read_tensor("layers.1.q"))


def test_there_is_no_text_and_nothing_stored(path):
    model = DummyModel(path)
    assert model.chat_template() is None
    assert model.stored_type("embed") == "BF16"
    with pytest.raises(ModelFileError, match="random"):
        model.read_stored_rows("embed", 0, 1)
    with pytest.raises(ModelFileError, match="no tokenizer"):
        model.tokenizer()
    model.close()


def test_a_folder_gives_its_name_to_a_config(tmp_path):
    path = tmp_path / "some-model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    assert DummyModel(path).spec.name == "some-model"
