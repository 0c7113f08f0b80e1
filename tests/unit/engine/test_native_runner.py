"""The native runner against the numpy specification, on every instruction set of this processor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.random_model import RandomModel, small_spec, tables_of

from ullage.base.errors import ConfigError, EngineError
from ullage.engine.native_runner import NativeRunner
from ullage.engine.numpy_runner import NumpyRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import RELEASED_BLOCK, SampledToken, ScheduledRequest, ScheduledStep
from ullage.kernels.layout import (
    GROUP_TERMS,
    WEIGHT_TYPES,
    WeightType,
    native_memory,
    numpy_memory,
    weight_layout,
    workspace_layout,
)
from ullage.kernels.native import NativeDecoder, native_isas, native_unavailable_reason
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import ModelSpec, RopeSpec
from ullage.plan.ledger import MemoryLedger

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]
NUM_BLOCKS = 24  # for each layer group
MAX_TOKENS = 206  # exactly the largest step below
MOST_NATS = 0.03  # keys and values are rounded to bf16; a misplaced value costs far more
MOST_NATS_BF16_DOT = 0.06  # activations too
MOST_NATS_ROUNDED: dict[WeightType, float] = {"bf16": 0.08, "int8": 0.2}  # weights too
LOGPROBS = SamplingParams(temperature=0.0, logprobs=20, max_tokens=1)


class ExactModel(RandomModel):
    """Matrices that bf16 and int8 both hold without loss: whole multiples, up to 127, of a power of two."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, gain=0.8)  # keeps the softmax flat

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        tensor = super().read_tensor(name)
        if tensor.ndim == 1:
            return tensor
        unit = np.float32(2.0 ** np.round(np.log2(tensor.std() * 3 / 127)))
        whole = np.clip(np.rint(tensor / unit), -127, 127)
        rows, groups = np.arange(len(whole))[:, None], np.arange(0, whole.shape[1], GROUP_TERMS)
        whole[rows, groups + rows % 16] = 127 * (-1) ** rows  # what int8 scales each group by
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
    block_size: int = 16,
    threads: int = 2,
    model: RandomModel | None = None,
) -> NativeRunner:
    num_blocks = NUM_BLOCKS * len(layer_groups(spec))
    planned = native_memory(
        spec,
        num_blocks,
        block_size,
        8,
        weight_type=weight_type,
        max_num_batched_tokens=MAX_TOKENS,
        num_threads=threads,
    )
    ledger = MemoryLedger(planned)
    runner = NativeRunner(
        model or ExactModel(spec),
        ledger,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=MAX_TOKENS,
        max_num_seqs=8,
        weight_type=weight_type,
        num_threads=threads,
        isa=isa,
    )
    ledger.check_complete()
    return runner


def numpy_runner(model: RandomModel, block_size: int) -> NumpyRunner:
    spec = model.spec
    num_blocks = NUM_BLOCKS * len(layer_groups(spec))
    ledger = MemoryLedger(numpy_memory(spec, num_blocks, block_size, 8))
    return NumpyRunner(
        model,
        ledger,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=MAX_TOKENS,
        max_num_seqs=8,
    )


def request(
    tokens: list[int], start: int, end: int, tables: list[list[int]], *, request_id: int = 0, logits: bool = True
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=request_id,
        token_ids=tokens[start:end],
        num_computed_tokens=start,
        block_tables=tables,
        sampling=LOGPROBS,
        seed=0,
        needs_logits=logits,
        history=tokens[:end],
        num_prompt_tokens=len(tokens),
    )


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


def mixed_steps(spec: ModelSpec, block_size: int) -> list[ScheduledStep]:
    """Two prompts in chunks, decodes and a prefill together, single rows, blocks in no order.

    The long one goes beyond the 256 tokens whose scores the kernels hold at once.
    """
    long, short, other = tokens_of(290, 1), tokens_of(7, 2), tokens_of(33, 3)
    ids = np.random.default_rng(9).permutation(NUM_BLOCKS).tolist()
    num_long, num_other = -(-290 // block_size), -(-33 // block_size)
    long_blocks, short_blocks, other_blocks = (
        tables_of(spec, block_ids, NUM_BLOCKS)
        for block_ids in (ids[:num_long], ids[num_long : num_long + 1], ids[num_long + 1 : num_long + 1 + num_other])
    )
    return [
        ScheduledStep(
            (request(long, 0, 200, long_blocks, logits=False), request(short, 0, 6, short_blocks, request_id=1))
        ),
        ScheduledStep((request(short, 6, 7, short_blocks, request_id=1), request(long, 200, 289, long_blocks))),
        ScheduledStep((request(long, 289, 290, long_blocks), request(other, 0, 33, other_blocks, request_id=2))),
    ]


def model_of(spec: ModelSpec, exact: bool) -> RandomModel:
    return ExactModel(spec) if exact else RandomModel(spec, gain=0.8)


@cache
def numpy_answers(spec: ModelSpec, block_size: int, exact: bool) -> list[list[SampledToken]]:
    """Worked out once for all instruction sets and weight types."""
    runner = numpy_runner(model_of(spec, exact), block_size)
    return [runner.execute(step) for step in mixed_steps(spec, block_size)]


def largest_difference(
    spec: ModelSpec, isa: str, weight_type: WeightType, *, block_size: int = 16, exact: bool = True
) -> float:
    """Largest difference of any log-probability that both runners give, in nats."""
    runner = native_runner(spec, isa=isa, weight_type=weight_type, block_size=block_size, model=model_of(spec, exact))
    worst = 0.0
    for step, answers in zip(mixed_steps(spec, block_size), numpy_answers(spec, block_size, exact), strict=True):
        for ours, theirs in zip(runner.execute(step), answers, strict=True):
            expected = dict(theirs.top_logprobs)
            shared = [(expected[token], logprob) for token, logprob in ours.top_logprobs if token in expected]
            assert len(shared) >= 15
            worst = max(worst, *(abs(a - b) for a, b in shared))
    return worst


def most_nats(isa: str, weight_type: WeightType) -> float:
    return MOST_NATS_BF16_DOT if (isa, weight_type) == ("avx512", "bf16") else MOST_NATS


every_kernel = pytest.mark.parametrize(("isa", "weight_type"), list(product(native_isas(), WEIGHT_TYPES)))


def test_the_kernels_were_compiled() -> None:
    assert native_unavailable_reason() is None


@every_kernel
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_agrees_with_numpy(architecture: str, isa: str, weight_type: WeightType) -> None:
    assert largest_difference(spec_of(architecture), isa, weight_type) < most_nats(isa, weight_type)


@every_kernel
def test_weights_of_any_value_agree_within_their_rounding(isa: str, weight_type: WeightType) -> None:
    assert largest_difference(spec_of("gemma3"), isa, weight_type, exact=False) < MOST_NATS_ROUNDED[weight_type]


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
    for step in mixed_steps(spec, 16):
        assert one.execute(step) == several.execute(step)


def test_a_step_without_logits_samples_nothing() -> None:
    step = ScheduledStep((request(tokens_of(5), 0, 5, [[3]], logits=False),))
    assert native_runner(spec_of("llama")).execute(step) == []


def test_chunks_and_whole_prompts_give_the_same_token() -> None:
    spec, tokens = spec_of("gemma3"), tokens_of(90)
    blocks = tables_of(spec, range(6), NUM_BLOCKS)
    whole = native_runner(spec).execute(ScheduledStep((request(tokens, 0, 90, blocks),)))
    runner = native_runner(spec)
    for start in range(0, 90, 13):
        last = runner.execute(ScheduledStep((request(tokens, start, min(start + 13, 90), blocks),)))
    assert last[0].token_id == whole[0].token_id
    assert last[0].logprob == pytest.approx(whole[0].logprob, abs=0.02)


def without_unseen(spec: ModelSpec, tables: list[list[int]], position: int, block_size: int) -> list[list[int]]:
    """What a request holds before the step that begins at this position."""
    kept: list[list[int]] = []
    for group, table in zip(layer_groups(spec), tables, strict=True):
        first = 0 if group.window is None else max(0, position + 1 - group.window) // block_size
        kept.append([RELEASED_BLOCK] * first + table[first:])
    return kept


@every_kernel
def test_blocks_that_no_token_sees_need_not_be_there(isa: str, weight_type: WeightType) -> None:
    spec, tokens = spec_of("gemma3"), tokens_of(100)
    tables = tables_of(spec, range(7), NUM_BLOCKS)
    whole, windowed = (native_runner(spec, isa=isa, weight_type=weight_type) for _ in range(2))
    for start, end in [(0, 60), (60, 99), (99, 100)]:
        kept = without_unseen(spec, tables, start, 16)
        assert (RELEASED_BLOCK in kept[0]) is (start > 0)
        assert windowed.execute(ScheduledStep((request(tokens, start, end, kept),))) == whole.execute(
            ScheduledStep((request(tokens, start, end, tables),))
        )


def test_a_block_missing_from_the_window_is_refused() -> None:
    spec, tokens = spec_of("gemma3"), tokens_of(100)
    tables = without_unseen(spec, tables_of(spec, range(7), NUM_BLOCKS), 84, 16)
    runner = native_runner(spec)
    runner.execute(ScheduledStep((request(tokens, 84, 90, tables),)))  # sees positions from 80 on: block 5
    with pytest.raises(EngineError, match="block id out of range"):
        runner.execute(ScheduledStep((request(tokens, 83, 90, tables),)))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (request([61], 0, 1, [[0]]), "token id out of range"),
        (request([1] * 17, 0, 17, [[0]]), "block table is too short"),
        (request([1], 0, 1, [[NUM_BLOCKS]]), "block id out of range"),
        (request([1] * 40, 39, 40, [[RELEASED_BLOCK, 1, 2]]), "block id out of range"),
        (request([1], 0, 1, [[0], [1]]), "arrays of a step don't fit together"),
        (request([1] * (MAX_TOKENS + 1), 0, MAX_TOKENS + 1, [list(range(19))]), "more rows than the workspace holds"),
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
    runner = native_runner(spec, isa=isa, weight_type=weight_type, model=DamagedModel(spec))
    [answer] = runner.execute(ScheduledStep((request(tokens_of(5), 0, 5, [[3]]),)))
    assert "nan" in str(answer.error)


class PoisonedModel(ExactModel):
    """Token 7 isn't made of numbers."""

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        tensor = super().read_tensor(name)
        if name == "embed":
            tensor[7] = np.nan
        return tensor


@pytest.mark.parametrize("length", [5, 18])
def test_a_request_that_went_wrong_leaves_nothing_in_its_blocks(length: int) -> None:
    spec = spec_of("llama")
    used, fresh = (native_runner(spec, model=PoisonedModel(spec)) for _ in range(2))
    [wrong] = used.execute(ScheduledStep((request([7] * 32, 0, 32, [[3, 4]], request_id=1),)))
    assert wrong.error is not None
    tokens = [token for token in tokens_of(60) if token != 7][:length]
    step = ScheduledStep((request(tokens, 0, length, [[3, 4]]),))
    assert used.execute(step) == fresh.execute(step)


@pytest.mark.parametrize("account", ["weights", "workspace"])
def test_memory_that_a_step_would_leave_is_refused(account: str) -> None:
    spec = spec_of("llama")
    planned = native_memory(
        spec, NUM_BLOCKS, 16, 8, weight_type="bf16", max_num_batched_tokens=MAX_TOKENS, num_threads=2
    )
    ledger = MemoryLedger(planned)
    memory = {name: ledger.allocate(name, num_bytes) for name, num_bytes in planned.items()}
    memory[account] = memory[account][:-64]
    with pytest.raises(ValueError, match="outside the arena"):
        NativeDecoder(
            RandomModel(spec),
            weight_layout(spec, "bf16"),
            workspace_layout(spec, MAX_TOKENS, 2),
            **memory,
            block_size=16,
            num_blocks=NUM_BLOCKS,
            max_num_tokens=MAX_TOKENS,
            num_threads=2,
            isa=None,
        )


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
