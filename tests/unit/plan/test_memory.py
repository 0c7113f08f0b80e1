from __future__ import annotations

import dataclasses
import math

import pytest
from tests.random_model import small_spec

from ullage.base.errors import ConfigError, PlanError
from ullage.models.spec import LayerSpec, ModelSpec, RopeSpec, expected_tensors
from ullage.plan.memory import Plan, PlanRequest, make_plan

GIB = 1 << 30

# The dimensions of SmolLM2 135M.
SMOLLM2 = ModelSpec(
    architecture="llama",
    name="smollm2",
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_size=64,
    vocab_size=49152,
    max_position=8192,
    layers=(LayerSpec(RopeSpec(100_000.0)),) * 30,
    norm_eps=1e-5,
    tied_embeddings=True,
)

# The dimensions of Gemma 3 270M: 6 groups of 3 layers.
GEMMA = dataclasses.replace(
    SMOLLM2,
    name="gemma",
    num_heads=4,
    num_kv_heads=1,
    head_size=256,
    max_position=32768,
    layers=(*[LayerSpec(RopeSpec(10_000.0), window=512)] * 5, LayerSpec(RopeSpec(1e6))) * 3,
)

REQUEST = PlanRequest(
    runner="native",
    weight_type="bf16",
    kv_type="bf16",
    block_size=32,
    max_model_len=None,
    max_num_seqs=32,
    max_num_batched_tokens=512,
    kv_memory_bytes=64 << 20,
    num_threads=2,
)


def plan_of(
    spec: ModelSpec = SMOLLM2,
    *,
    stored_type: str = "Q4_1",
    available: int = 8 * GIB,
    runtime: int = 100 << 20,
    **changes: object,
) -> Plan:
    """:param stored_type: of every matrix in the file"""
    request = dataclasses.replace(REQUEST, **changes)
    stored_types = {name: stored_type if len(shape) == 2 else "F32" for name, shape in expected_tensors(spec).items()}
    return make_plan(spec, stored_types, request, available_bytes=available, runtime_bytes=runtime)


def test_a_token_takes_what_the_formula_says():
    # 2 (K and V) x 30 layers x 3 heads x 64 x 2 bytes
    assert plan_of().token_bytes == 23_040


def test_the_pool_has_as_many_whole_blocks_as_its_memory_holds():
    plan = plan_of()
    assert plan.num_blocks == (64 << 20) // (32 * 23_040) == 91
    assert plan.planned_bytes()["kv_pool"] == 91 * 32 * 23_040
    assert plan.capacity_tokens == 91 * 32


def test_int8_keys_and_values_take_a_byte_each_and_a_scale_per_head():
    # 2 (K and V) x 30 layers x 3 heads x (64 x 1 byte + 4 bytes)
    plan = plan_of(kv_type="int8")
    assert plan.token_bytes == 12_240
    assert plan.num_blocks == (64 << 20) // (32 * 12_240) == 171


EMBEDDING = 49152 * 576
LAYERS = 30 * (576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536)
NORMS = (2 * 30 + 1) * 576 * 4


@pytest.mark.parametrize(
    ("weight_type", "stored_type", "embedding_bits", "layer_bits"),
    [
        ("bf16", "Q4_1", 16, 16),
        ("int8", "Q4_1", 8.5, 8.5),  # 8 bits and a half-precision scale for 32
        ("int4", "Q4_1", 8.5, 5),  # a scale and a minimum for 32; the vocabulary stays at 8 bits
        ("file", "Q4_0", 4.5, 4.5),
        ("file", "Q4_1", 5, 5),
        ("file", "Q4_K", 6, 6),  # scale and minimum in float32, for 32
        ("file", "Q5_0", 8.5, 8.5),
        ("file", "Q5_K", 10, 10),
        ("file", "Q6_K", 10, 10),  # a float32 scale for 16
        ("file", "Q8_0", 8.5, 8.5),
        ("file", "BF16", 16, 16),
        ("file", "Q3_K", 16, 16),
    ],
)
def test_weights_are_parameters_times_bits_each(weight_type, stored_type, embedding_bits, layer_bits):
    planned = plan_of(weight_type=weight_type, stored_type=stored_type).planned_bytes()
    assert planned["weights"] == (EMBEDDING * embedding_bits + LAYERS * layer_bits) / 8 + NORMS


def test_numpy_holds_everything_in_float32():
    planned = plan_of(runner="numpy").planned_bytes()
    parameters = 49152 * 576 + 30 * (576 * 960 + 576 * 576 + 3 * 576 * 1536) + 61 * 576
    assert planned["weights"] == 4 * parameters
    assert planned["kv_pool"] == (64 << 20) // (32 * 46_080) * 32 * 46_080


def test_the_accounts_add_up_to_what_the_process_may_use():
    plan = plan_of(available=8 * GIB, runtime=100 << 20)
    assert sum(account.num_bytes for account in plan.accounts) == plan.available_bytes == 8 * GIB + (100 << 20)
    assert [account.name for account in plan.accounts] == [
        "weights", "kv_pool", "workspace", "logits", "runtime", "headroom",
    ]  # fmt: skip


@pytest.mark.parametrize("runner", ["native", "numpy"])
def test_a_plan_of_exactly_what_there_is_holds_and_one_byte_less_does_not(runner):
    needed = sum(account.num_bytes for account in plan_of(runner=runner).accounts[:-2])
    assert plan_of(runner=runner, available=needed).planned_bytes()["headroom"] == 0
    with pytest.raises(PlanError, match=rf"needs .*[(]{needed + (100 << 20)} bytes"):
        plan_of(runner=runner, available=needed - 1)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({}, "weights takes most, 256.6 MiB: use a smaller model"),
        ({"max_num_batched_tokens": 1_000_000}, "lower max_num_batched_tokens"),
        ({"max_num_seqs": 10_000}, "lower max_num_seqs"),
    ],
)
def test_when_even_the_smallest_pool_does_not_fit_the_largest_account_is_named(changes, hint):
    with pytest.raises(PlanError, match="the plan needs") as error:
        plan_of(available=100 << 20, **changes)
    assert hint in error.value.hint


def test_a_request_has_at_most_what_the_pool_holds():
    assert plan_of(kv_memory_bytes=64 << 20).max_request_tokens == 2912
    assert plan_of(kv_memory_bytes=64 << 20, max_model_len=1024).max_request_tokens == 1024


def test_blocks_of_a_model_with_windows_hold_one_group_of_layers():
    plan = plan_of(GEMMA)
    assert plan.slot_bytes == 2 * 3 * 1 * 256 * 2
    assert plan.token_bytes == 18_432  # as many as 18 layers take
    assert plan.block_bytes == 32 * 3072
    assert plan.num_blocks == (64 << 20) // (32 * 3072) == 682
    assert plan.capacity_tokens == 682 // 6 * 32
    formulas = {account.name: account.formula for account in plan.accounts}
    assert formulas["kv_pool"] == (
        "2 (K, V) x 3 layers x 1 heads x 256 x 2 B x 21,824 tokens; a token counts once for each of 6 groups of layers"
    )
    assert math.prod([2, 3, 1, 256, 2, 21_824]) == plan.planned_bytes()["kv_pool"]


def test_behind_its_windows_a_request_grows_in_the_group_without_one_only():
    plan = plan_of(GEMMA)
    in_windows = 5 * 33  # 511 tokens and a step of 512 touch at most 33 blocks
    assert plan.max_request_tokens == (682 - in_windows) * 32 == 16_544
    assert plan_of(GEMMA, max_model_len=4096).max_request_tokens == 4096


def test_without_a_size_the_pool_of_a_model_with_windows_holds_full_requests():
    plan = plan_of(GEMMA, kv_memory_bytes=None, max_model_len=8192, max_num_seqs=4)
    assert plan.num_blocks == 4 * (8192 // 32 + 5 * 33)
    assert plan.max_request_tokens == 8192
    few = plan_of(GEMMA, kv_memory_bytes=None, max_model_len=64, max_num_seqs=4)
    assert few.num_blocks == 4 * 6 * 2


def test_a_pool_smaller_than_a_block_for_each_group_is_refused():
    with pytest.raises(ConfigError, match="less than one block of 32 tokens for each of the 6 groups") as error:
        plan_of(GEMMA, kv_memory_bytes=6 * 32 * 3072 - 1)
    assert str(6 * 32 * 3072) in error.value.hint
    assert plan_of(GEMMA, kv_memory_bytes=6 * 32 * 3072).max_request_tokens == 32


def test_the_process_takes_all_but_the_headroom():
    plan = plan_of()
    assert plan.process_bytes == plan.available_bytes - plan.planned_bytes()["headroom"]


@pytest.mark.parametrize(
    ("max_model_len", "max_num_seqs", "expected_blocks"),
    [
        (1024, 4, 4 * 32),  # room for all full requests is less than 1 GiB
        (8192, 32, GIB // (32 * 23_040)),  # 1 GiB
        (8192, 1, 256),
    ],
)
def test_without_a_size_the_pool_follows_from_context_and_concurrency(max_model_len, max_num_seqs, expected_blocks):
    plan = plan_of(kv_memory_bytes=None, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
    assert plan.num_blocks == expected_blocks


def test_without_a_size_the_pool_holds_at_least_one_full_request():
    long = dataclasses.replace(SMOLLM2, max_position=131_072)
    assert plan_of(long, kv_memory_bytes=None).num_blocks == 131_072 // 32


def test_a_pool_smaller_than_a_block_is_refused():
    with pytest.raises(ConfigError, match="less than one block of 32 tokens") as error:
        plan_of(kv_memory_bytes=32 * 23_040 - 1)
    assert str(32 * 23_040) in error.value.hint
    assert plan_of(kv_memory_bytes=32 * 23_040).num_blocks == 1


def test_a_context_beyond_the_models_is_refused():
    with pytest.raises(ConfigError, match="max_model_len 8193 exceeds the 8192 tokens"):
        plan_of(max_model_len=8193)
    assert plan_of(max_model_len=8192).max_model_len == plan_of(max_model_len=None).max_model_len == 8192


def test_formulas_are_filled_in_with_the_figures_they_give():
    plan = plan_of()
    formulas = {account.name: account.formula for account in plan.accounts}
    assert formulas["kv_pool"] == "2 (K, V) x 30 layers x 3 heads x 64 x 2 B x 2,912 tokens"
    assert math.prod([2, 30, 3, 64, 2, 2912]) == plan.planned_bytes()["kv_pool"]
    assert formulas["logits"] == "32 sequences x 49,152 tokens x 4 B"
    assert math.prod([32, 49152, 4]) == plan.planned_bytes()["logits"]


def test_the_plan_names_the_formats_of_the_weights_and_their_bytes():
    def formula_of(**changes: object) -> str:
        return next(account.formula for account in plan_of(**changes).accounts if account.name == "weights")

    rest = "; norms in float32; the embedding is also the output matrix"
    assert formula_of(weight_type="file") == "matrices: 80.2 MiB int4_min" + rest
    assert formula_of(weight_type="int4") == "matrices: 63.3 MiB int4_min, 28.7 MiB int8" + rest
    assert formula_of(runner="numpy").startswith("every tensor in float32")


def test_int8_keys_and_values_show_in_the_formula():
    formulas = {account.name: account.formula for account in plan_of(kv_type="int8").accounts}
    assert formulas["kv_pool"] == "2 (K, V) x 30 layers x 3 heads x (64 x 1 B + 4 B) x 5,472 tokens"
    assert plan_of(kv_type="int8").planned_bytes()["kv_pool"] == 2 * 30 * 3 * (64 + 4) * 5472


def test_sizes_the_native_kernels_cannot_take_are_refused_before_anything_is_counted():
    with pytest.raises(ConfigError, match="multiple of 16"):
        plan_of(small_spec())
    assert plan_of(small_spec(), runner="numpy", kv_memory_bytes=1 << 20).num_blocks > 0
