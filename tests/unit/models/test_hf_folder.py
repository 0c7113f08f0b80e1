from __future__ import annotations

import json

import numpy as np
import pytest
from tests.model_fixtures import ARCHITECTURES, CHAT_TEMPLATE, hf_name, tiny_model, write_folder, write_gguf

from ullage.base.errors import ModelFileError
from ullage.models.gguf_file import GGUFFile
from ullage.models.hf_folder import HFFolder


@pytest.fixture
def opened(tmp_path):
    """Writes a tiny model with changes and opens it; closes all at the end."""
    folders = []

    def open_(architecture="llama", *, model=None, **changes):
        model = model or tiny_model(architecture)
        path = write_folder(tmp_path / str(len(folders)) / model.spec.name, model, **changes)
        folders.append(HFFolder(path))
        return folders[-1]

    yield open_
    for folder in folders:
        folder.close()


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_spec_and_tensors_come_back_canonical(opened, architecture, num_shards):
    model = tiny_model(architecture, tied=architecture != "qwen3")
    folder = opened(model=model, num_shards=num_shards)
    assert folder.spec == model.spec
    assert list(folder.tensor_names()) == list(model.tensor_names())
    for name in folder.tensor_names():
        np.testing.assert_array_equal(folder.read_tensor(name), model.read_tensor(name), err_msg=name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_and_a_gguf_file_of_the_same_weights_are_the_same_model(opened, tmp_path, architecture):
    model = tiny_model(architecture)
    folder = opened(model=model, dtype="BF16")
    file = GGUFFile(write_gguf(tmp_path / "tiny.gguf", model, tensor_type="F16"))
    assert folder.spec == file.spec
    for name in file.tensor_names():
        np.testing.assert_array_equal(folder.read_tensor(name), file.read_tensor(name), err_msg=name)
    file.close()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_folder_tells_its_type_and_has_no_blocks(opened, dtype):
    folder = opened(dtype=dtype)
    assert {folder.stored_type(name) for name in folder.tensor_names()} == {dtype}
    with pytest.raises(ModelFileError, match=r"tensor layers\.1\.up aren't stored in blocks"):
        folder.read_stored_rows("layers.1.up", 0, 4)


def test_gemma_norms_gain_the_one_that_the_folder_leaves_out(opened):
    folder = opened(
        "gemma3",
        tensors={
            "model.norm.weight": np.zeros(64, np.float32),
            "model.layers.0.self_attn.q_norm.weight": np.full(32, 0.5, np.float32),
        },
    )
    assert (folder.read_tensor("final_norm") == 1.0).all()
    assert (folder.read_tensor("layers.0.q_norm") == 1.5).all()


def test_a_repeated_output_matrix_and_old_buffers_are_passed_over(opened):
    extra = {
        "lm_head.weight": np.ones((272, 64), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
    }
    assert "lm_head" not in set(opened(tensors=extra).tensor_names())


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_gemma3_with_vision_is_read_for_its_text_part(opened, prefix):
    model = tiny_model("gemma3")
    plain = [hf_name(name, model.spec) for name in model.tensor_names()]
    reference = opened(model=model)
    tensors = dict.fromkeys(plain)
    for name, stored in zip(model.tensor_names(), plain, strict=True):
        values = model.read_tensor(name)
        tensors[prefix + stored.removeprefix("model.")] = values - 1 if name.endswith("norm") else values
    tensors["vision_tower.patch"] = np.ones(3, np.float32)
    folder = opened(model=model, tensors=tensors, config={"architectures": ["Gemma3ForConditionalGeneration"]})
    for name in model.tensor_names():
        np.testing.assert_array_equal(folder.read_tensor(name), reference.read_tensor(name))


def refused(opened, complaint, **changes):
    with pytest.raises(ModelFileError, match=complaint) as error:
        opened(**changes)
    assert "tiny-llama" in error.value.message


def test_a_missing_shard_is_named(opened, tmp_path):
    path = opened(num_shards=3).path
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFileError, match="1 of 3 shards are missing, first model-00002-of-00003"):
        HFFolder(path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tensors": {"model.norm.weight": None}}, "1 tensors are missing, first model.norm.weight"),
        ({"tensors": {"model.norm.weight": np.ones(65, np.float32)}}, r"model.norm.weight has shape \(65,\)"),
        ({"tensors": {"model.layers.0.self_attn.o_proj.bias": np.ones(64, np.float32)}}, "o_proj.bias' isn't part"),
        ({"tensors": {"vision_tower.patch": np.ones(3, np.float32)}}, "'vision_tower.patch' isn't part"),
        ({"config": {"tie_word_embeddings": False}}, "missing, first lm_head.weight"),
        ({"config": {"num_hidden_layers": 4}}, "9 tensors are missing, first model.layers.3"),
        ({"config": {"num_hidden_layers": 2}}, "'model.layers.2.* isn't part of a llama model"),
        ({"config": {"architectures": ["MixtralForCausalLM"]}}, "'MixtralForCausalLM' can't run"),
    ],
)
def test_what_does_not_fit_is_refused_when_opened(opened, changes, complaint):
    refused(opened, complaint, **changes)


def test_two_names_for_one_part_are_refused(opened):
    refused(
        opened,
        "are the same part",
        tensors={"language_model.model.norm.weight": np.ones(64, np.float32)},
    )


def test_nan_is_named_when_read(opened):
    values = tiny_model("llama").read_tensor("layers.0.up")
    values[0, 0] = np.nan
    folder = opened(tensors={"model.layers.0.mlp.up_proj.weight": values})
    with pytest.raises(ModelFileError, match=r"layers\.0\.mlp\.up_proj\.weight holds NaN"):
        folder.read_tensor("layers.0.up")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "\ufeff{}"])
def test_a_damaged_config_is_named(opened, text):
    path = opened().path
    (path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"config\.json"):
        HFFolder(path)


def test_stored_bytes_are_those_of_the_tensors(opened):
    model = tiny_model("llama")
    assert opened(model=model).stored_bytes() == model.stored_bytes()
    assert opened(model=model, dtype="BF16").stored_bytes() == model.stored_bytes() // 2


# --- chat template ---


def test_the_template_comes_from_the_tokenizer_config(opened):
    assert opened().chat_template() == CHAT_TEMPLATE


def test_a_template_file_of_its_own_wins(opened):
    folder = opened()
    (folder.path / "chat_template.jinja").write_text("你好", encoding="utf-8")
    assert folder.chat_template() == "你好"
    (folder.path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFileError, match="isn't UTF-8"):
        folder.chat_template()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"chat_template": None}, None),
        ({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}, "d"),
    ],
)
def test_the_tokenizer_config_may_have_none_or_several(opened, config, expected):
    folder = opened()
    (folder.path / "tokenizer_config.json").write_text(json.dumps(config))
    assert folder.chat_template() == expected


@pytest.mark.parametrize("template", [3, [{"name": "tool_use", "template": "t"}], []])
def test_a_template_that_is_none_is_refused(opened, template):
    folder = opened()
    (folder.path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(ModelFileError, match="chat_template"):
        folder.chat_template()


def test_a_folder_without_tokenizer_config_has_no_template(opened):
    folder = opened()
    (folder.path / "tokenizer_config.json").unlink()
    assert folder.chat_template() is None
