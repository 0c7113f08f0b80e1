from __future__ import annotations

import pytest
from tests.unit.plan.start_up_cases import cases

from ullage.plan.architecture import Architecture, architecture_of
from ullage.plan.weights.formats import ggml_type
from ullage.plan.weights.ranks import Parallelism, num_parameters, share, weight_bytes, weight_bytes_per_rank
from ullage.plan.weights.tensors import experts, linear, vector

GIB = 1024**3
CASES = {case.name: case for case in cases("exact", "rounded", "information-only", "negative-control")}


def architecture(name: str) -> Architecture:
    return architecture_of(CASES[name].config)


def test_every_parameter_takes_the_bytes_of_its_type():
    llama = architecture("llama31-8b-3090-20k")
    assert weight_bytes(llama) == 2 * num_parameters(llama)


@pytest.mark.parametrize(
    ("name", "printed_gib", "relative"),
    [
        ("qwen25-14b-tp2-r1distill", 2 * 13.9476, 0.015),
        ("qwen3-coder-30b-fp8kv", 29.09, 0.003),
        ("phi4-bnb4", 8.63, 0.02),
        ("qwen25-05b-unsloth", 0.52, 0.04),
        ("zamba2-27b-vllm", 5.0655, 0.03),
    ],
)
def test_quantised_checkpoints_come_near_what_engines_measured(name, printed_gib, relative):
    assert weight_bytes(architecture(name)) / GIB == pytest.approx(printed_gib, rel=relative)


def test_mtp_layers_are_counted_only_where_they_are_loaded():
    deepseek = architecture("ds-r1-gaudi")
    assert weight_bytes(deepseek, with_prediction=True) > weight_bytes(deepseek) * 1.01


def test_tied_embeddings_are_stored_once():
    tied = architecture("gemma3-1b-vllm")
    assert tied.tied_embeddings
    assert num_parameters(tied) / 1e9 == pytest.approx(1.0, abs=1e-3)


def test_a_gguf_file_of_one_type_keeps_vectors_in_f32():
    llama = architecture("llama31-8b-3090-20k")
    vectors = 65 * 4096
    matrices = num_parameters(llama) - vectors
    assert weight_bytes(llama, ggml=ggml_type("q4_0")) == matrices // 32 * 18 + vectors * 4


@pytest.mark.parametrize(
    ("weight", "ranks", "parameters"),
    [
        (linear("q", 64, 32, split="rows"), Parallelism(tensor=4), 16 * 32),
        (linear("o", 64, 32, split="columns"), Parallelism(tensor=4), 64 * 8),
        (linear("k", 64, 32, split="kv_rows", heads=2), Parallelism(tensor=4), 32 * 32),
        (linear("kv_a", 64, 32, split="whole"), Parallelism(tensor=4), 64 * 32),
        (vector("norm", 64), Parallelism(tensor=4), 64),
        (experts("up", 64, 32, 8, split="rows"), Parallelism(tensor=4), 16 * 32 * 8),
        (experts("up", 64, 32, 8, split="rows"), Parallelism(tensor=4, experts=4), 64 * 32 * 2),
        (linear("lm_head", 1000, 32, split="rows"), Parallelism(tensor=2), 512 * 32),
    ],
    ids=str,
)
def test_a_rank_keeps_its_share(weight, ranks, parameters):
    assert share(weight, ranks).parameters == parameters


def test_ranks_hold_together_a_little_more_than_the_model():
    llama = architecture("llama31-70b-w8a8-v1")
    whole = weight_bytes(llama)
    for ranks in (Parallelism(tensor=8), Parallelism(pipeline=4), Parallelism(tensor=2, pipeline=4)):
        count = ranks.tensor * ranks.pipeline
        part = weight_bytes_per_rank(llama, ranks)
        assert whole / count <= part <= whole / count * 1.08


def test_expert_parallelism_gives_experts_out_whole():
    deepseek = architecture("ds-r1-gaudi")
    cut = weight_bytes_per_rank(deepseek, Parallelism(tensor=8))
    given_out = weight_bytes_per_rank(deepseek, Parallelism(tensor=8, experts=8))
    assert given_out == pytest.approx(cut, rel=0.01)
    assert weight_bytes_per_rank(deepseek, Parallelism(experts=8)) < weight_bytes(deepseek) / 4


def test_parts_whose_weights_are_not_derived_are_named():
    assert architecture("gemma4-31b-hfmem").uncounted == ("vision_config",)
    assert architecture("llama31-8b-3090-20k").uncounted == ()


@pytest.mark.parametrize(
    ("name", "tower_parameters"), [("qwen35-27b-vllm-h20", 460e6), ("mistral-small-4-kaito", 428.5e6)]
)
def test_a_vision_tower_is_counted_and_never_quantised(name, tower_parameters):
    with_tower = architecture(name)
    visual = [weight for weight in with_tower.outer_weights if weight.name.startswith("visual.")]
    assert sum(weight.parameters for weight in visual) == pytest.approx(tower_parameters, rel=0.02)
    assert not any(weight.linear for weight in visual)
    assert with_tower.uncounted == ()


def test_gemma_3s_tower_is_that_of_siglip():
    siglip = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304}
    siglip |= {"num_hidden_layers": 27, "patch_size": 14, "image_size": 896}
    text = {**CASES["gemma3-1b-vllm"].config, "hidden_size": 1152}
    alone = num_parameters(architecture_of(text))
    seeing = num_parameters(architecture_of({"text_config": text, "vision_config": siglip}))
    assert seeing - alone == pytest.approx(418e6, rel=0.01)
