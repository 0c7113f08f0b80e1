from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.block_model import dequantized
from tests.model_fixtures import (
    ARCHITECTURES,
    CHAT_TEMPLATE,
    GGUF_NAMES,
    WINDOW,
    TinyModel,
    gguf_tensor,
    tiny_model,
    write_gguf,
)

from ullage.base.errors import ModelFileError
from ullage.models.gguf_file import GGUFFile
from ullage.models.spec import MAX_LAYERS, RopeSpec, expected_tensors


@pytest.fixture
def opened(tmp_path):
    """Writes a tiny model with changes and opens it; closes all at the end."""
    files = []

    def open_(architecture="llama", *, model=None, **changes):
        path = write_gguf(tmp_path / f"tiny{len(files)}.gguf", model or tiny_model(architecture), **changes)
        files.append(GGUFFile(path))
        return files[-1]

    yield open_
    for file in files:
        file.close()


def refused(opened, complaint, architecture="llama", **changes):
    with pytest.raises(ModelFileError, match=complaint) as error:
        opened(architecture, **changes)
    assert "tiny" in error.value.message


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_spec_and_tensors_come_back_canonical(opened, architecture, version):
    model = tiny_model(architecture, tied=architecture != "llama")
    file = opened(model=model, version=version)
    assert file.spec == model.spec
    assert list(file.tensor_names()) == list(expected_tensors(model.spec))
    for name in file.tensor_names():
        np.testing.assert_array_equal(file.read_tensor(name), model.read_tensor(name), err_msg=name)


@pytest.mark.parametrize("tensor_type", ["F16", "BF16"])
def test_half_precision_is_read_exactly(opened, tensor_type):
    model = tiny_model("llama")
    file = opened(model=model, tensor_type=tensor_type)
    for name in file.tensor_names():
        np.testing.assert_array_equal(file.read_tensor(name), model.read_tensor(name), err_msg=name)


@pytest.mark.parametrize(
    ("tensor_type", "step"), [("Q8_0", 1 / 127), ("Q5_0", 1 / 15), ("Q4_0", 1 / 7), ("Q4_1", 1 / 7)]
)
def test_quantised_tensors_come_back_within_a_step(opened, tensor_type, step):
    model = tiny_model("llama")
    file = opened(model=model, tensor_type=tensor_type)
    for name in ("embed", "layers.1.q", "layers.2.down"):
        expected = model.read_tensor(name)
        assert np.abs(file.read_tensor(name) - expected).max() <= step * np.abs(expected).max()


@pytest.mark.parametrize("tensor_type", ["Q4_0", "Q4_1", "Q5_0", "Q8_0"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_stored_rows_are_those_that_the_values_come_from(opened, architecture, tensor_type):
    """In canonical order, any range of them: also where llama files permute the rows of each head."""
    file = opened(architecture, tensor_type=tensor_type)
    for name in ("embed", "layers.1.q", "layers.2.k", "layers.0.v", "layers.1.down"):
        assert file.stored_type(name) == tensor_type
        values = file.read_tensor(name)
        for first, count in ((0, len(values)), (5, 1), (7, 25)):
            stored = file.read_stored_rows(name, first, count)
            np.testing.assert_array_equal(dequantized(tensor_type, stored), values[first : first + count], err_msg=name)
            stored[:] = 0  # the caller's own
    assert file.stored_type("final_norm") == "F32"


@pytest.mark.parametrize("tensor_type", ["F32", "F16", "BF16"])
def test_floats_have_no_stored_blocks(opened, tensor_type):
    file = opened(tensor_type=tensor_type)
    assert file.stored_type("layers.0.up") == tensor_type
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_up\.weight isn't stored in blocks"):
        file.read_stored_rows("layers.0.up", 0, 16)


def test_a_tensor_larger_than_a_chunk_is_read_whole(opened):
    model = tiny_model("llama")
    wide = dataclasses.replace(model.spec, intermediate_size=8224)  # 526,336 elements, more than two chunks
    model = TinyModel(wide)
    for tensor_type in ("F32", "Q8_0"):
        file = opened(model=model, tensor_type=tensor_type)
        np.testing.assert_allclose(file.read_tensor("layers.0.up"), model.read_tensor("layers.0.up"), atol=0.02)


def test_what_is_read_is_the_callers_own(opened):
    file = opened()
    file.read_tensor("embed")[:] = 7
    assert not (file.read_tensor("embed") == 7).any()


def test_llama_biases_are_unpermuted_with_their_rows(opened):
    model = tiny_model("llama")
    biased = TinyModel(dataclasses.replace(model.spec, qkv_bias=True))
    file = opened(model=biased)
    assert file.spec.qkv_bias
    for name in ("layers.0.q_bias", "layers.0.k_bias", "layers.0.v_bias"):
        np.testing.assert_array_equal(file.read_tensor(name), biased.read_tensor(name))


def test_llama_3_factors_come_from_their_tensor(opened):
    factors = np.array([1, 1, 1.5, 2, 4, 8, 8, 8], np.float32)
    file = opened(tensors={"rope_freqs.weight": gguf_tensor(factors)})
    assert file.spec.layers[2].rope == RopeSpec(10_000.0, tuple(factors.tolist()))


@pytest.mark.parametrize("factors", [np.ones(7), np.zeros(8), -np.ones(8)])
def test_impossible_rope_factors_are_refused(opened, factors):
    refused(opened, "rope_freqs.weight", tensors={"rope_freqs.weight": gguf_tensor(factors.astype(np.float32))})


@pytest.mark.parametrize(
    "keys",
    [
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.factor": 4.0},
        {"llama.rope.scale_linear": 4.0},
    ],
)
def test_linear_rope_scaling_divides_every_frequency(opened, keys):
    assert opened(metadata=keys).spec.layers[0].rope.freq_factors == (4.0,) * 8


def test_rope_scaling_of_type_none_switches_the_factor_off(opened):
    keys = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}
    assert opened(metadata=keys).spec.layers[0].rope == RopeSpec(10_000.0)


def test_yarn_stretches_the_context(opened):
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 256}
    spec = opened("qwen3", metadata={f"qwen3.rope.scaling.{key}": value for key, value in keys.items()}).spec
    rope = spec.layers[0].rope
    assert spec.max_position == 1024
    assert rope.freq_factors[0] == 1.0
    assert rope.freq_factors[-1] == 4.0
    assert rope.attention_factor == pytest.approx(1.1386, abs=1e-4)


def test_a_mistral_window_holds_for_every_layer(opened):
    spec = opened(metadata={"llama.attention.sliding_window": 4096}).spec
    assert [layer.window for layer in spec.layers] == [4096] * 3


def test_qwen_windows_that_are_switched_off_stay_off(opened):
    spec = opened("qwen2", metadata={"qwen2.attention.sliding_window": 32768}).spec
    assert [layer.window for layer in spec.layers] == [None] * 3


def test_gemma3_without_a_pattern_has_every_sixth_layer_global(opened):
    model = tiny_model("gemma3", num_layers=7)
    keys = {"gemma3.attention.sliding_window_pattern": None}
    layers = opened(model=model, metadata=keys).spec.layers
    assert [layer.window for layer in layers] == [WINDOW] * 5 + [None, WINDOW]
    assert [layer.rope.theta for layer in layers] == [1e4] * 5 + [1e6, 1e4]


def test_gemma3_takes_a_pattern_per_layer(opened):
    keys = {"gemma3.attention.sliding_window_pattern": [False, True, True], "gemma3.rope.freq_base_swa": 5000.0}
    layers = opened("gemma3", metadata=keys).spec.layers
    assert [layer.window for layer in layers] == [None, WINDOW, WINDOW]
    assert layers[1].rope.theta == 5000.0


def test_gemma3_scales_global_layers_only(opened):
    keys = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    local, full, _ = opened("gemma3", metadata=keys).spec.layers
    assert full.rope == RopeSpec(1e6, (8.0,) * 16)
    assert local.rope == RopeSpec(1e4)


def test_gemma3_27b_scales_attention_by_hidden_size_per_head(opened):
    large = dataclasses.replace(tiny_model("gemma3", num_layers=62).spec, intermediate_size=32, vocab_size=8)
    assert opened(model=TinyModel(large)).spec.attention_scale == 16**-0.5
    assert opened("gemma3").spec.attention_scale is None
    assert opened("gemma3", metadata={"gemma3.attention.scale": 0.5}).spec.attention_scale == 0.5


def test_a_missing_name_falls_back_to_the_files(opened):
    assert opened(metadata={"general.name": None}).spec.name == "tiny0"


def test_values_per_layer_are_accepted_when_all_are_equal(opened):
    assert opened(metadata={"llama.attention.head_count_kv": [2, 2, 2]}).spec.num_kv_heads == 2
    refused(opened, "differs from layer to layer", metadata={"llama.attention.head_count_kv": [2, 1, 2]})


def test_the_template_and_the_tables_are_handed_on(opened):
    file = opened()
    assert file.chat_template() == CHAT_TEMPLATE
    assert file.metadata["tokenizer.ggml.tokens"][-1] == "<|im_end|>"
    assert opened(metadata={"tokenizer.chat_template": None}).chat_template() is None


def test_stored_bytes_are_those_of_the_tensors(opened):
    model = tiny_model("llama")
    assert opened(model=model).stored_bytes() == model.stored_bytes()


@pytest.mark.parametrize("architecture", ["qwen3moe", "gpt2", "mamba"])
def test_other_architectures_are_refused_with_those_that_run(opened, architecture):
    refused(
        opened,
        f"'{architecture}' can't run.*llama, qwen2, qwen3, gemma3",
        metadata={"general.architecture": architecture},
    )


def test_a_tensor_that_no_architecture_has_is_a_warning(opened, caplog):
    extra = {"blk.0.surprise.weight": (0, (4,), bytes(16)), "note": (0, (4,), bytes(16))}
    assert set(opened(tensors=extra).tensor_names()) == set(tiny_model("llama").tensor_names())
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "'blk.0.surprise.weight' is unknown" in caplog.text


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.0.ffn_up.bias", "blk.1.ffn_gate_exps.weight"])
def test_a_tensor_that_would_change_the_model_is_refused(opened, name):
    refused(opened, f"tensor '{name}' isn't part of a llama model", tensors={name: (0, (4,), bytes(16))})


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"llama.expert_count": 8}, "expert_count asks for a mixture of experts"),
        ({"llama.logit_scale": 0.5}, "logit_scale asks for"),
        ({"llama.attention.causal": False}, "attention.causal is false"),
        ({"split.count": 3}, "one of 3 files"),
        ({"general.architecture": None}, "general.architecture is missing"),
        ({"general.architecture": 3}, "general.architecture must be a text"),
        ({"llama.embedding_length": None}, "llama.embedding_length is missing"),
        ({"llama.block_count": 2**31}, f"llama.block_count must be between 1 and {MAX_LAYERS}"),
        ({"llama.block_count": 4}, "tensors are missing, first blk.3.attn_norm.weight"),
        ({"llama.block_count": 2}, "tensor 'blk.2.attn_norm.weight' isn't part of a llama model"),
        ({"llama.feed_forward_length": 128}, r"blk.0.ffn_gate.weight has shape \(96, 64\), .* \(128, 64\)"),
        ({"llama.attention.head_count_kv": 3}, "isn't a multiple of head_count_kv"),
        ({"llama.attention.head_count": "four"}, "head_count must be a whole number"),
        ({"llama.attention.key_length": 15}, "must be even"),
        ({"llama.attention.value_length": 8}, "value_length differs"),
        ({"llama.rope.dimension_count": 8}, "dimension_count differs"),
        ({"llama.rope.freq_base": float("nan")}, "freq_base must be above 1"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope' can't run here"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "rms_epsilon must be above 0"),
        ({"llama.context_length": 0}, "context_length must be between"),
    ],
)
def test_what_cannot_run_is_refused_by_name(opened, metadata, complaint):
    refused(opened, complaint, metadata=metadata)


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({"blk.1.attn_v.weight": None}, "1 tensors are missing, first blk.1.attn_v.weight"),
        ({"token_embd.weight": None}, "no embedding matrix"),
        ({"blk.0.attn_output.bias": gguf_tensor(np.ones(64, np.float32))}, "'blk.0.attn_output.bias' isn't part"),
        ({"output_norm.weight": (26, (64,), bytes(256))}, "output_norm.weight has type I32, which can't be read"),
        ({"output_norm.weight": gguf_tensor(np.ones(65, np.float32))}, "output_norm.weight has shape"),
    ],
)
def test_tensors_that_do_not_fit_the_architecture_are_refused(opened, tensors, complaint):
    refused(opened, complaint, tensors=tensors)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_tensor_with_nan_or_infinity_is_named_when_read(opened, bad):
    model = tiny_model("llama")
    values = model.read_tensor("layers.1.down")
    values[5, 7] = bad
    file = opened(model=model, tensors={f"blk.1.{GGUF_NAMES['down']}": gguf_tensor(values)})
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_down\.weight holds NaN or infinity"):
        file.read_tensor("layers.1.down")
    assert np.isfinite(file.read_tensor("layers.0.down")).all()


def test_a_damaged_scale_of_a_quantised_tensor_is_found(opened):
    number, shape, data = gguf_tensor(tiny_model("llama").read_tensor("layers.0.up"), "Q8_0")
    infinite = np.array(np.inf, "<f2").tobytes()
    file = opened(tensors={"blk.0.ffn_up.weight": (number, shape, infinite + data[2:])})
    with pytest.raises(ModelFileError, match="NaN or infinity"):
        file.read_tensor("layers.0.up")


def test_a_file_cut_within_its_tensors_is_refused_at_once(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(ModelFileError, match="truncated"):
        GGUFFile(path)
