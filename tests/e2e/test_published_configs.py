"""Published ``config.json`` files, where a collection of them lies beside the project: each parses or is refused by
name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ullage.base.errors import ModelFileError
from ullage.models.hf_config import spec_from_config
from ullage.models.spec import RUNNABLE_ARCHITECTURES, expected_tensors

CONFIGS = sorted((Path(__file__).parents[3] / "shared" / "cases" / "configs").glob("*.json"))
RUNNABLE_TYPES = {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}

if CONFIGS:

    @pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
    def test_a_published_config_parses_or_is_refused_by_name(path):
        config = json.loads(path.read_text("utf-8"))
        if config["model_type"] in RUNNABLE_TYPES and "quantization_config" not in config:
            spec = spec_from_config(path, config, path.stem)
            assert spec.architecture in RUNNABLE_ARCHITECTURES
            assert spec.num_layers == config["num_hidden_layers"]
            assert spec.head_size == config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
            assert expected_tensors(spec)["embed"] == (config["vocab_size"], config["hidden_size"])
        else:
            with pytest.raises(ModelFileError) as error:
                spec_from_config(path, config, path.stem)
            named = config.get("quantization_config", {}).get("quant_method"), config["architectures"][0]
            assert any(name and name in error.value.message for name in named)
