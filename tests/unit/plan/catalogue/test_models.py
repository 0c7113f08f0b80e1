from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from ullage.plan.architecture import CompressedCache, RecurrentState, architecture_of
from ullage.plan.catalogue import find_model, model_names, similar_models
from ullage.plan.catalogue.models import _IGNORED, catalogued_models
from ullage.plan.catalogue.names import key_of
from ullage.plan.engines.request import EngineRequest
from ullage.plan.kv_memory import kv_memory
from ullage.plan.weights.ranks import num_parameters

MODELS = catalogued_models()
REQUEST = EngineRequest("vllm", max_model_len=8192, max_num_batched_tokens=8192, mamba_cache_mode="none")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_memory_to_count_and_says_where_its_figures_come_from(name):
    model = MODELS[name]
    architecture = architecture_of(model.config)
    kinds = {type(cache) for cache in architecture.caches()}
    memory = kv_memory(architecture, replace(REQUEST, kv_dtype="fp8") if CompressedCache in kinds else REQUEST)
    if kinds == {RecurrentState}:
        assert memory.fixed_bytes_per_request > 0
    else:
        assert memory.bytes_per_token is None or memory.bytes_per_token > 0
        assert memory.bytes_per_request > 0
    assert model.source.startswith("https://")
    assert model.copy is None or model.copy.startswith("https://")


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.parameters is not None])
def test_a_published_number_of_parameters_is_met(name):
    model = MODELS[name]
    assert model.parameters_source.startswith("https://")
    assert num_parameters(architecture_of(model.config)) == pytest.approx(model.parameters, rel=0.01)


def test_most_models_have_a_published_number_of_parameters():
    assert len(MODELS) >= 40
    assert sum(model.parameters is not None for model in MODELS.values()) > 0.7 * len(MODELS)
    assert all(model.parameters_source is None for model in MODELS.values() if model.parameters is None)


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("Llama-3.1-8B", 2 * 32 * 8 * 128 * 2),
        ("Llama-3.1-70B", 2 * 80 * 8 * 128 * 2),
        ("Qwen3-8B", 2 * 36 * 8 * 128 * 2),
        ("DeepSeek-V3", 61 * (512 + 64) * 2),
    ],
)
def test_bytes_per_token_are_as_published(name, num_bytes):
    assert kv_memory(architecture_of(find_model(name)), REQUEST).bytes_per_token == num_bytes


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("llama3.1:8b", "Llama-3.1-8B"),
        ("llama 3.1 8b", "Llama-3.1-8B"),
        ("LLAMA-3.1-8B", "Llama-3.1-8B"),
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("qwen3:8b", "Qwen3-8B"),
        ("gpt_oss_20b", "gpt-oss-20b"),
        ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"),
    ],
)
def test_a_model_is_found_by_common_spellings(spelling, name):
    assert find_model(spelling) is MODELS[name].config


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("Lama-3.1-8B", "Llama-3.1-8B"),
        ("gpt-os-20b", "gpt-oss-20b"),
        ("DeepSek-V3", "DeepSeek-V3"),
        ("qwn3-8b", "Qwen3-8B"),
    ],
)
def test_a_misspelt_model_gets_a_suggestion(misspelt, meant):
    assert find_model(misspelt) is None
    assert meant in similar_models(misspelt)


@pytest.mark.parametrize("name", ["", " ", "/", "no such thing at all"])
def test_what_is_near_to_nothing_gets_none(name):
    assert find_model(name) is None
    assert similar_models(name) == ()


def test_no_two_models_share_a_spelling():
    keys = Counter(
        key for model in MODELS.values() for key in {key_of(n, ignored=_IGNORED) for n in (model.name, *model.aliases)}
    )
    assert [key for key, times in keys.items() if times > 1 or not key] == []
    assert set(model_names()) == set(MODELS)
    assert list(model_names()) == sorted(model_names(), key=str.lower)


def test_the_catalogue_loads_nothing_heavy():
    script = (
        "import sys; from ullage.plan.catalogue import find_device, find_model;"
        "assert find_model('Qwen3-8B') and find_device('H200');"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "click", "rich", "fastapi", "pydantic", "tokenizers", "jinja2", "httpx"}.isdisjoint(loaded)
