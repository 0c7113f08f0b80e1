"""The native runner against the numpy specification, on every instruction set of this processor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.native_runners import BYTE_ROWS, Sizes, build_native, build_numpy, request
from tests.random_model import RandomModel, small_spec

from ullage.base.errors import ConfigError, EngineError
from ullage.engine.native_runner import NativeRunner
from ullage.engine.step import SampledToken, ScheduledRequest, ScheduledStep
from ullage.kernels.layout import KV_TYPES, KVType, native_memory, tensor_types, weight_layout, workspace_layout
from ullage.kernels.native import NativeDecoder, native_isas
from ullage.kernels.program import OPERATOR_KINDS
from ullage.kernels.weight_formats import WeightType
from ullage.models.spec import ModelSpec, RopeSpec
from ullage.plan.ledger import MemoryLedger

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]
SIZES = Sizes()  # its 206 tokens are exactly the largest step below
NUM_BLOCKS = SIZES.num_blocks
GROUP_TERMS = 32  # of int8 and int4 share a scale
MOST_NATS = 0.03  # keys and values are rounded to bf16; a misplaced value costs far more
MOST_NATS_BF16_DOT = 0.06  # activations too, of all weight types where many rows share the weights
MOST_NATS_INT4_DOT = 0.09  # as before, and a neighbour's 4 bits leave up to a 4000th of a scale in a widened weight
MOST_NATS_INT8_KV = 0.2  # keys and values are rounded to a 254th of twice a head's peak, bf16 to a 256th of each
MOST_NATS_ROUNDED: dict[WeightType, float] = {"bf16": 0.08, "int8": 0.2, "int4": 2.8}  # weights too
"""int4 is allowed 14 times what int8 is: its step is a 15th of a group's range, the other's about a 254th."""
ROUNDED_TYPES: list[WeightType] = ["bf16", "int8", "int4"]


class ExactModel(RandomModel):
    """Matrices that bf16 and int8 hold without loss, or bf16 and int4: whole multiples of a power of two."""

    def __init__(self, spec: ModelSpec, weight_type: WeightType) -> None:
        super().__init__(spec, gain=0.8)  # keeps the softmax flat
        self._weight_type = weight_type

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        tensor = super().read_tensor(name)
        if tensor.ndim == 1:
            return tensor
        is_coarse = self._weight_type == "int4" and name not in ("embed", "lm_head")  # these stay at 8 bits
        low, high = (-8, 7) if is_coarse else (-127, 127)
        exponent = np.log2(tensor.std() * 3 / high)
        unit = np.float32(2.0 ** (np.floor(exponent) if is_coarse else np.round(exponent)))
        whole = np.clip(np.rint(tensor / unit), low, high)
        # What each group is scaled by: its peak, or its least and its largest.
        rows, groups = np.arange(len(whole))[:, None], np.arange(0, whole.shape[1], GROUP_TERMS)
        whole[rows, groups + rows % 16] = np.where(rows % 2, low, high)
        if is_coarse:
            whole[rows, groups + (rows + 1) % 16] = np.where(rows % 2, high, low)
        return whole.astype(np.float32) * unit


def spec_of(architecture: str, **changes: object) -> ModelSpec:
    """A small spec of sizes that the kernels take; an odd number of panels, tiles and heads where that is possible."""
    spec = small_spec(architecture)
    factors = tuple(1.0 + 0.25 * i for i in range(24))
    layers = [
        replace(layer, rope=replace(layer.rope, freq_factors=factors if layer.rope.freq_factors else None))
        for layer in spec.layers
    ]
    sizes = {"hidden_size": 80, "intermediate_size": 112, "head_size": 48, "num_heads": 6, "num_kv_heads": 2}
    return replace(spec, layers=tuple(layers), **(sizes | changes))


def native_runner(
    spec: ModelSpec,
    *,
    isa: str | None = None,
    weight_type: WeightType = "bf16",
    kv_type: KVType = "bf16",
    block_size: int = 16,
    threads: int = 2,
    model: RandomModel | None = None,
) -> NativeRunner:
    model = model or ExactModel(spec, weight_type)
    sizes = Sizes(block_size=block_size)
    return build_native(model, sizes, isa=isa, weight_type=weight_type, kv_type=kv_type, threads=threads).runner


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


def mixed_steps(block_size: int) -> list[ScheduledStep]:
    """Two prompts in chunks, decodes and a prefill together, single rows, blocks in no order.

    The long one goes beyond the 256 tokens whose scores the kernels hold at once.
    """
    long, short, other = tokens_of(290, 1), tokens_of(7, 2), tokens_of(33, 3)
    ids = np.random.default_rng(9).permutation(NUM_BLOCKS).tolist()
    num_long, num_other = -(-290 // block_size), -(-33 // block_size)
    long_blocks, short_blocks = ids[:num_long], [ids[num_long]]
    other_blocks = ids[num_long + 1 : num_long + 1 + num_other]
    return [
        ScheduledStep(
            (request(long, 0, 200, long_blocks, logits=False), request(short, 0, 6, short_blocks, request_id=1))
        ),
        ScheduledStep((request(short, 6, 7, short_blocks, request_id=1), request(long, 200, 289, long_blocks))),
        ScheduledStep((request(long, 289, 290, long_blocks), request(other, 0, 33, other_blocks, request_id=2))),
    ]


def model_of(spec: ModelSpec, exact_for: WeightType | None) -> RandomModel:
    return RandomModel(spec, gain=0.8) if exact_for is None else ExactModel(spec, exact_for)


@cache
def numpy_answers(spec: ModelSpec, block_size: int, exact_for: WeightType | None) -> list[list[SampledToken]]:
    """Worked out once for all instruction sets."""
    runner = build_numpy(model_of(spec, exact_for), Sizes(block_size=block_size))
    return [runner.execute(step) for step in mixed_steps(block_size)]


def largest_difference(
    spec: ModelSpec,
    isa: str,
    weight_type: WeightType,
    kv_type: KVType = "bf16",
    *,
    block_size: int = 16,
    exact: bool = True,
) -> float:
    """Largest difference of any log-probability that both runners give, in nats."""
    exact_for = weight_type if exact else None
    runner = native_runner(
        spec,
        isa=isa,
        weight_type=weight_type,
        kv_type=kv_type,
        block_size=block_size,
        model=model_of(spec, exact_for),
    )
    expected_answers = numpy_answers(spec, block_size, exact_for)
    worst = 0.0
    for step, answers in zip(mixed_steps(block_size), expected_answers, strict=True):
        for ours, theirs in zip(runner.execute(step), answers, strict=True):
            expected = dict(theirs.top_logprobs)
            shared = [(expected[token], logprob) for token, logprob in ours.top_logprobs if token in expected]
            assert len(shared) >= 15
            worst = max(worst, *(abs(a - b) for a, b in shared))
    return worst


def most_nats(isa: str, weight_type: WeightType, kv_type: KVType = "bf16") -> float:
    most = {"bf16": MOST_NATS_BF16_DOT, "int8": MOST_NATS_BF16_DOT, "int4": MOST_NATS_INT4_DOT}[weight_type]
    most = most if isa in BYTE_ROWS else MOST_NATS
    return most if kv_type == "bf16" else MOST_NATS_INT8_KV


every_kernel = pytest.mark.parametrize(("isa", "weight_type"), list(product(native_isas(), ROUNDED_TYPES)))


@every_kernel
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_every_architecture_agrees_with_numpy(
    architecture: str, isa: str, weight_type: WeightType, kv_type: KVType
) -> None:
    difference = largest_difference(spec_of(architecture), isa, weight_type, kv_type)
    assert difference < most_nats(isa, weight_type, kv_type)


@every_kernel
def test_weights_of_any_value_agree_within_their_rounding(isa: str, weight_type: WeightType) -> None:
    difference = largest_difference(spec_of("gemma3"), isa, weight_type, exact=False)
    assert difference < MOST_NATS_ROUNDED[weight_type]


@every_kernel
@pytest.mark.parametrize("block_size", [32, 48, 256])
def test_any_block_size_agrees_with_numpy(block_size: int, isa: str, weight_type: WeightType) -> None:
    spec = spec_of("gemma3")
    assert largest_difference(spec, isa, weight_type, block_size=block_size) < most_nats(isa, weight_type)


@every_kernel
@pytest.mark.parametrize(
    "changes",
    [
        {"num_heads": 1, "num_kv_heads": 1, "head_size": 16},
        {"num_heads": 26, "num_kv_heads": 1, "head_size": 16},
        {"num_heads": 2, "num_kv_heads": 2, "head_size": 256},
        {"hidden_size": 16, "intermediate_size": 16},
        {"vocab_size": 64},
    ],
    ids=["one head", "more heads in a group than rows", "largest heads", "smallest sizes", "whole tiles"],
)
def test_odd_shapes_agree_with_numpy(changes: dict[str, int], isa: str, weight_type: WeightType) -> None:
    spec = spec_of("llama", **changes)
    plain = tuple(replace(layer, rope=RopeSpec(theta=10_000.0)) for layer in spec.layers)
    assert largest_difference(replace(spec, layers=plain), isa, weight_type) < most_nats(isa, weight_type)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    """Also where there are more than cores, and they sleep instead of spinning."""
    spec = spec_of("llama")
    one, several = native_runner(spec, threads=1), native_runner(spec, threads=threads)
    for step in mixed_steps(16):
        assert one.execute(step) == several.execute(step)


def test_a_step_without_logits_samples_nothing() -> None:
    step = ScheduledStep((request(tokens_of(5), 0, 5, [3], logits=False),))
    assert native_runner(spec_of("llama")).execute(step) == []


def test_chunks_and_whole_prompts_give_the_same_token() -> None:
    spec, tokens, blocks = spec_of("gemma3"), tokens_of(90), list(range(6))
    whole = native_runner(spec).execute(ScheduledStep((request(tokens, 0, 90, blocks),)))
    runner = native_runner(spec)
    for start in range(0, 90, 13):
        last = runner.execute(ScheduledStep((request(tokens, start, min(start + 13, 90), blocks),)))
    assert last[0].token_id == whole[0].token_id
    assert last[0].logprob == pytest.approx(whole[0].logprob, abs=0.02)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (request([61], 0, 1, [0]), "token id out of range"),
        (request([1] * 17, 0, 17, [0]), "block table is too short"),
        (request([1], 0, 1, [NUM_BLOCKS]), "block id out of range"),
        (
            request([1] * (SIZES.max_tokens + 1), 0, SIZES.max_tokens + 1, list(range(19))),
            "more rows than the workspace holds",
        ),
    ],
)
def test_a_step_that_would_leave_its_memory_is_refused(step: ScheduledRequest, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        native_runner(spec_of("llama")).execute(ScheduledStep((step,)))


class DamagedModel(ExactModel):
    """One weight of the last layer isn't a number."""

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        tensor = super().read_tensor(name)
        if name == "layers.2.ffn_norm":
            tensor[3] = np.nan
        return tensor


@every_kernel
def test_what_is_not_a_number_shows_in_the_logits(isa: str, weight_type: WeightType) -> None:
    spec = spec_of("llama")
    runner = native_runner(spec, isa=isa, weight_type=weight_type, model=DamagedModel(spec, weight_type))
    [answer] = runner.execute(ScheduledStep((request(tokens_of(5), 0, 5, [3]),)))
    assert "nan" in str(answer.error)


class PoisonedModel(ExactModel):
    """Token 7 isn't made of numbers."""

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        tensor = super().read_tensor(name)
        if name == "embed":
            tensor[7] = np.nan
        return tensor


@pytest.mark.parametrize("length", [5, 18])
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_request_that_went_wrong_leaves_nothing_in_its_blocks(length: int, kv_type: KVType) -> None:
    spec = spec_of("llama")
    used, fresh = (native_runner(spec, kv_type=kv_type, model=PoisonedModel(spec, "bf16")) for _ in range(2))
    [wrong] = used.execute(ScheduledStep((request([7] * 32, 0, 32, [3, 4], request_id=1),)))
    assert wrong.error is not None
    tokens = [token for token in tokens_of(60) if token != 7][:length]
    step = ScheduledStep((request(tokens, 0, length, [3, 4]),))
    assert used.execute(step) == fresh.execute(step)


@pytest.mark.parametrize("account", ["weights", "workspace"])
def test_memory_that_a_step_would_leave_is_refused(account: str) -> None:
    model = RandomModel(spec_of("llama"))
    spec, types = model.spec, tensor_types(model)
    planned = native_memory(
        spec,
        NUM_BLOCKS,
        16,
        8,
        weight_type="bf16",
        stored_types=types,
        kv_type="bf16",
        max_num_batched_tokens=SIZES.max_tokens,
        num_threads=2,
    )
    ledger = MemoryLedger(planned)
    memory = {name: ledger.allocate(name, num_bytes) for name, num_bytes in planned.items()}
    memory[account] = memory[account][:-64]
    with pytest.raises(ValueError, match="outside the arena"):
        NativeDecoder(
            model,
            weight_layout(spec, "bf16", types),
            workspace_layout(spec, SIZES.max_tokens, 2, 16, "bf16"),
            **memory,
            block_size=16,
            num_blocks=NUM_BLOCKS,
            max_num_tokens=SIZES.max_tokens,
            num_threads=2,
            kv_type="bf16",
            isa=None,
        )


def test_the_time_of_each_kind_of_operator_grows_with_the_steps() -> None:
    runner = native_runner(spec_of("llama"))
    assert runner.stage_seconds() == dict.fromkeys(OPERATOR_KINDS, 0.0)
    seen = runner.stage_seconds()
    for step in mixed_steps(16):
        runner.execute(step)
        now = runner.stage_seconds()
        assert all(now[kind] > seen[kind] for kind in OPERATOR_KINDS)
        seen = now


def test_the_name_tells_instruction_set_formats_and_threads() -> None:
    runner = native_runner(spec_of("llama"), isa="portable", weight_type="int4", kv_type="int8", threads=3)
    assert runner.name == "native (portable, int4_min+int8 weights, int8 KV, 3 threads)"


def test_an_instruction_set_this_processor_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="can't run 'vax'"):
        native_runner(spec_of("llama"), isa="vax")


@pytest.mark.parametrize(("changes", "name"), [({"head_size": 40}, "head_size"), ({"hidden_size": 72}, "hidden_size")])
def test_sizes_the_kernels_cannot_take_are_refused_by_name(changes: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} to be a multiple of 16"):
        native_runner(spec_of("llama", **changes))


@pytest.mark.parametrize("block_size", [8, 20, 272])
def test_block_sizes_the_kernels_cannot_take_are_refused(block_size: int) -> None:
    with pytest.raises(ConfigError, match=f"block size {block_size}"):
        native_runner(spec_of("llama"), block_size=block_size)
