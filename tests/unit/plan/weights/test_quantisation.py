from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.plan.weights import formats
from ullage.plan.weights.quantisation import quantisation_of
from ullage.plan.weights.tensors import linear, vector

MATRIX = linear("mlp.up_proj", 8, 8, split="rows")
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}


def format_of(config: dict, path: str = "model.layers.3.mlp.up_proj") -> object:
    quantisation = quantisation_of(config)
    assert quantisation is not None
    return quantisation.format_of(MATRIX, path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "fp8"}, formats.FP8_PER_TENSOR),
        ({"quant_method": "fp8", "weight_block_size": [128, 64]}, formats.fp8_in_blocks(128, 64)),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, formats.awq(4, 64)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, formats.gptq(8, 0)),
        ({"quant_method": "mxfp4"}, formats.MXFP4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, formats.NVFP4),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, formats.FP8_PER_TENSOR),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, formats.INT8_PER_ROW),
        ({"quant_method": "bitsandbytes", "bnb_4bit_use_double_quant": True}, formats.Nf4(nested=True)),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": INT4}}},
            formats.awq(4, 128, zero_points=False),
        ),
    ],
    ids=str,
)
def test_a_checkpoints_method_says_its_format(config, expected):
    assert format_of(config) == expected


@pytest.mark.parametrize(
    "kept",
    [
        "model.layers.3.mlp.up_proj",
        "model.layers.3",
        "up_proj",
        "mlp",
        "model.layers.*.mlp",
        "*mlp*",
        r"re:.*layers\.3\.mlp.*",
    ],
)
def test_modules_that_are_named_keep_the_models_type(kept):
    config = {"quant_method": "fp8", "modules_to_not_convert": [kept]}
    assert format_of(config) is None
    assert format_of(config, "model.layers.33.self_attn.o_proj") is not None


def test_vectors_and_embeddings_keep_the_models_type():
    quantisation = quantisation_of({"quant_method": "fp8"})
    assert quantisation is not None
    assert quantisation.format_of(vector("norm", 8), "model.norm") is None


def test_groups_apply_to_the_modules_that_they_name():
    groups = {
        "group_0": {"targets": ["re:.*mlp.*"], "weights": INT4},
        "group_1": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}},
    }
    config = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert format_of(config) == formats.awq(4, 128, zero_points=False)
    assert format_of(config, "model.layers.3.self_attn.o_proj") == formats.INT8_PER_ROW


def test_experts_may_have_a_type_of_their_own():
    config = {"quant_method": "fp8", "expert_dtype": "fp4"}
    assert format_of(config, "model.layers.3.mlp.experts.up_proj") == formats.MXFP4
    assert format_of(config) == formats.FP8_PER_TENSOR


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "magic"}, "quant_method"),
        ({}, "quant_method"),
        ({"quant_method": "gptq", "group_size": 128}, "bits"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        ({"quant_method": "modelopt", "quant_algo": "INT3"}, "quant_algo"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        ({"quant_method": "fp8", "ignore": ["re:(a+)+$"]}, "pattern"),
        ({"quant_method": "fp8", "ignore": ["re:("]}, "pattern"),
        ({"quant_method": "fp8", "ignore": [5]}, "ignore"),
        ({"quant_method": "fp8", "expert_dtype": "fp2"}, "expert_dtype"),
    ],
    ids=str,
)
def test_a_detail_that_is_not_known_is_refused_by_name(config, named):
    with pytest.raises(ConfigError, match=named):
        quantisation_of(config)


def test_no_quantisation_is_none():
    assert quantisation_of(None) is None
