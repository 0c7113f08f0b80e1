"""A model written as a folder is the model again when it is read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.random_model import RandomModel, small_spec

from ullage.base.errors import ModelFileError
from ullage.models.hf_folder import HFFolder
from ullage.models.spec import LayerSpec, ModelSpec, RopeSpec
from ullage.ops.bench.hf_export import export_folder


def exportable(architecture: str) -> ModelSpec:
    spec = small_spec(architecture)
    layers = [LayerSpec(RopeSpec(theta=1e6 if layer.window is None else 1e4), layer.window) for layer in spec.layers]
    return replace(spec, layers=tuple(layers))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_the_folder_holds_the_same_model(tmp_path, architecture):
    model = RandomModel(exportable(architecture))
    export_folder(model, tmp_path)
    folder = HFFolder(tmp_path)
    assert replace(folder.spec, name=model.spec.name) == model.spec
    for name in model.tensor_names():
        values = model.read_tensor(name)
        assert np.allclose(folder.read_tensor(name), values, rtol=2**-8, atol=2**-9)
    folder.close()


def test_frequencies_that_a_config_cannot_state_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match="rotary frequencies"):
        export_folder(RandomModel(small_spec("llama")), tmp_path)
