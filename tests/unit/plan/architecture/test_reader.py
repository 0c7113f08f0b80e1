from __future__ import annotations

import contextlib
import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plan.start_up_cases import CASES

from ullage.base.errors import ConfigError
from ullage.plan.architecture import (
    Architecture,
    AttentionCache,
    CompressedCache,
    IndexerCache,
    LatentCache,
    RecurrentState,
    architecture_of,
)
from ullage.plan.weights.ranks import num_parameters

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
CONFIGS = {path.name: json.loads(path.read_text("utf-8")) for path in sorted((CASES / "configs").glob("*.json"))}


def config(name: str) -> Architecture:
    return architecture_of(CONFIGS[f"{name}.json"])


def windows(architecture: Architecture) -> list[int | None]:
    return [cache.window for cache in architecture.caches() if isinstance(cache, AttentionCache)]


def test_heads_and_sizes_that_are_left_out_follow_from_the_others():
    bare = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    assert architecture_of(bare).caches() == (AttentionCache(8, 8, 8),) * 4
    assert architecture_of(LLAMA).caches() == (AttentionCache(2, 8, 8),) * 4
    assert architecture_of({**LLAMA, "head_dim": 16}).caches()[0] == AttentionCache(2, 16, 16)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama31-8b-3090-20k", 8.030),
        ("llama31-70b-w8a8-v1", 70.554),
        ("qwen25-05b-unsloth", 0.494),
        ("qwen3-235b-fp8-vllm", 235.094),
        ("ds-r1-gaudi", 671.026),
        ("ds-v2-llamacpp-nonmla", 235.741),
        ("gemma3-1b-vllm", 1.000),
        ("gptoss120b-hfmem", 116.829),
        ("nemotron3-nano-sglang-tp4", 31.578),
    ],
)
def test_parameters_are_those_that_the_publisher_counts(name, billions):
    assert num_parameters(config(name)) / 1e9 == pytest.approx(billions, abs=5e-4)


def test_a_window_that_is_switched_off_is_no_window():
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 32, "max_window_layers": 3}
    assert windows(architecture_of({**qwen, "use_sliding_window": False})) == [None] * 4
    assert windows(architecture_of({**qwen, "use_sliding_window": True})) == [None, None, None, 32]


def test_every_way_of_saying_which_layers_slide_is_read():
    sliding = {**LLAMA, "sliding_window": 32}
    assert windows(architecture_of(sliding)) == [32] * 4
    assert windows(architecture_of({**sliding, "sliding_window_pattern": 2})) == [32, None, 32, None]
    assert windows(architecture_of({**sliding, "sliding_window_pattern": "LLG"})) == [32, 32, None, 32]
    assert windows(architecture_of({**sliding, "hybrid_layer_pattern": [0, 1, 1, 0]})) == [None, 32, 32, None]
    kinds = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    assert windows(architecture_of({**sliding, "layer_types": kinds})) == [None, 32, None, None]
    assert windows(architecture_of({**LLAMA, "model_type": "gemma2", "head_dim": 8})) == [4096, None, 4096, None]


def test_sliding_layers_may_have_heads_of_their_own():
    assert set(config("mimo-v2-flash-sglang").caches()) == {
        AttentionCache(4, 192, 128),
        AttentionCache(8, 192, 128, window=128),
    }
    assert set(config("gemma4-31b-hfmem").caches()) == {
        AttentionCache(4, 512, 512),
        AttentionCache(16, 256, 256, window=1024),
    }


def test_layers_that_share_a_cache_have_none_of_their_own():
    shared = architecture_of({**LLAMA, "num_kv_shared_layers": 3})
    assert [len(layer.caches) for layer in shared.layers] == [1, 0, 0, 0]


def test_an_indexer_stands_where_the_configuration_puts_it():
    glm = config("glm52-fp8dsmla")
    assert sum(isinstance(cache, IndexerCache) for cache in glm.caches()) == 21
    assert sum(isinstance(cache, IndexerCache) for cache in glm.caches(1)) == 22
    raw = {name: v for name, v in CONFIGS["glm52-fp8dsmla.json"].items() if name != "indexer_types"}
    assert architecture_of(raw).caches() == glm.caches()  # the period says the same as the list


def test_linear_layers_are_told_apart_by_their_fields():
    kinds = {cache.form for cache in config("glm53-flash-spark").caches() if isinstance(cache, RecurrentState)}
    assert kinds == {"kimi_delta"}
    assert RecurrentState("gated_delta", 4, 48, 128, 128, 16, "float32") in config("qwen35-27b-vllm-h20").caches()
    assert RecurrentState("mamba2", 4, 64, 64, 128, 8, "float32", 128) in config("nemotron-cascade2-block").caches()
    jamba = {**LLAMA, "model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 1}
    states = architecture_of(jamba).caches()
    assert states == (
        RecurrentState("mamba1", 4, 128, 1, 16, 0),
        AttentionCache(2, 8, 8),
        *(RecurrentState("mamba1", 4, 128, 1, 16, 0),) * 2,
    )


def test_kimi_counts_its_layers_from_one():
    linear = {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 8, "head_dim": 8}
    latent = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    caches = architecture_of({**LLAMA, **latent, "linear_attn_config": linear}).caches()
    assert caches[3] == LatentCache(32, 8, 8, 8, 8)
    assert all(isinstance(cache, RecurrentState) for cache in caches[:3])
    with pytest.raises(ConfigError, match="kda_layers"):
        architecture_of({**LLAMA, **latent, "linear_attn_config": {**linear, "kda_layers": [0, 1, 2]}})


def test_compressed_layers_are_read_from_their_ratios():
    caches = config("dsv4-flash-gh200").caches()
    assert [cache.ratio for cache in caches if isinstance(cache, CompressedCache)][:5] == [0, 0, 4, 128, 4]
    assert {cache.index_head_dim for cache in caches if isinstance(cache, CompressedCache) and cache.ratio == 4} == {
        128
    }


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"layer_types": ["full_attention", "rwkv7", "full_attention", "full_attention"]}, r"layer_types\[1\].*rwkv7"),
        ({"layer_types": ["linear_attention"] * 4}, "linear attention"),
        ({"hybrid_override_pattern": "M*X*"}, r"hybrid_override_pattern\[2\]"),
        ({"rwkv_head_size": 64}, "rwkv_head_size"),
        ({"block_configs": [{"attention": {}}]}, "block_configs"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"use_cla": True, "cla_share_factor": 2}, "use_cla"),
        ({"sparse_attention_config": {"topk": 4}}, "sparse_attention_config"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
    ],
)
def test_an_unknown_kind_of_cache_is_refused_by_name(fields, named):
    with pytest.raises(ConfigError, match=named):
        architecture_of({**LLAMA, **fields})


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_field_is_named(field):
    bare = {name: value for name, value in LLAMA.items() if name != field}
    with pytest.raises(ConfigError, match=field):
        architecture_of(bare)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 2.5, "8", True, [], {}, 10**30], ids=repr)
@pytest.mark.parametrize(
    "field",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "head_dim"],
)
def test_a_value_that_is_no_size_is_named(field, value):
    with pytest.raises(ConfigError, match=rf"config\.json.*{field} must be a whole number") as caught:
        architecture_of({**LLAMA, field: value})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_attention_heads": 7}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_hidden_layers": 20_000}, "num_hidden_layers"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"quantization_config": 4}, "quantization_config"),
        ({"text_config": []}, "text_config"),
        ({"kv_lora_rank": 32}, "qk_rope_head_dim"),
        ({"num_experts": 4, "moe_layer_freq": [1]}, "moe_layer_freq"),
        ({"partial_rotary_factor": -1}, "partial_rotary_factor"),
        ({"model_type": 5}, "model_type"),
    ],
    ids=str,
)
def test_fields_that_contradict_each_other_are_named(fields, named):
    with pytest.raises(ConfigError, match=named):
        architecture_of({**LLAMA, **fields})


@pytest.mark.parametrize("raw", [None, [], "llama", 5, True, {}], ids=repr)
def test_what_is_no_configuration_is_refused(raw):
    with pytest.raises(ConfigError, match=r"config\.json"):
        architecture_of(raw)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_worked_out_or_refused(data):
    raw = copy.deepcopy(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))])
    part = raw.get("text_config", raw) if data.draw(st.booleans()) else raw
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(JSON_VALUES)
    with contextlib.suppress(ConfigError):
        assert architecture_of(raw).num_layers >= 1
