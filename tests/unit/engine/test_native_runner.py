"""The native runner against the numpy specification, on every instruction set of this processor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.random_model import RandomModel, small_spec

from ullage.base.errors import ConfigError, EngineError
from ullage.engine.native_runner import NativeRunner
from ullage.engine.numpy_runner import NumpyRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import ScheduledRequest, ScheduledStep
from ullage.kernels.layout import WeightType, native_memory, numpy_memory
from ullage.kernels.native import native_isas
from ullage.models.spec import ModelSpec, RopeSpec
from ullage.plan.ledger import MemoryLedger

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]
NUM_BLOCKS = 24
MAX_TOKENS = 300
MOST_NATS = 0.08  # rounding of weights, activations and cache to bf16; a misplaced value costs far more
LOGPROBS = SamplingParams(temperature=0.0, logprobs=20, max_tokens=1)


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
    spec: ModelSpec, *, isa: str | None = None, weight_type: WeightType = "bf16", block_size: int = 16, threads: int = 2
) -> NativeRunner:
    planned = native_memory(
        spec,
        NUM_BLOCKS,
        block_size,
        8,
        weight_type=weight_type,
        max_num_batched_tokens=MAX_TOKENS,
        num_threads=threads,
    )
    ledger = MemoryLedger(planned)
    runner = NativeRunner(
        RandomModel(spec, gain=0.8),
        ledger,
        num_blocks=NUM_BLOCKS,
        block_size=block_size,
        max_num_batched_tokens=MAX_TOKENS,
        max_num_seqs=8,
        weight_type=weight_type,
        num_threads=threads,
        isa=isa,
    )
    ledger.check_complete()
    return runner


def numpy_runner(spec: ModelSpec, block_size: int = 16) -> NumpyRunner:
    ledger = MemoryLedger(numpy_memory(spec, NUM_BLOCKS, block_size, 8))
    return NumpyRunner(
        RandomModel(spec, gain=0.8),
        ledger,
        num_blocks=NUM_BLOCKS,
        block_size=block_size,
        max_num_batched_tokens=MAX_TOKENS,
        max_num_seqs=8,
    )


def request(
    tokens: list[int], start: int, end: int, blocks: list[int], *, request_id: int = 0, logits: bool = True
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=request_id,
        token_ids=tokens[start:end],
        num_computed_tokens=start,
        block_ids=blocks,
        sampling=LOGPROBS,
        seed=0,
        needs_logits=logits,
        history=tokens[:end],
        num_prompt_tokens=len(tokens),
    )


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


def mixed_steps(block_size: int) -> list[ScheduledStep]:
    """Two prompts in chunks, decodes and a prefill together, single rows, blocks in no order."""
    long, short, other = tokens_of(150, 1), tokens_of(7, 2), tokens_of(33, 3)
    ids = np.random.default_rng(9).permutation(NUM_BLOCKS).tolist()
    num_long, num_other = -(-150 // block_size), -(-33 // block_size)
    long_blocks, short_blocks = ids[:num_long], [ids[num_long]]
    other_blocks = ids[num_long + 1 : num_long + 1 + num_other]
    return [
        ScheduledStep(
            (request(long, 0, 61, long_blocks, logits=False), request(short, 0, 6, short_blocks, request_id=1))
        ),
        ScheduledStep((request(short, 6, 7, short_blocks, request_id=1), request(long, 61, 149, long_blocks))),
        ScheduledStep((request(long, 149, 150, long_blocks), request(other, 0, 33, other_blocks, request_id=2))),
    ]


def largest_difference(spec: ModelSpec, block_size: int, **options: object) -> float:
    """Largest difference of any log-probability that both runners give, in nats; tokens must be equal."""
    native, reference = native_runner(spec, block_size=block_size, **options), numpy_runner(spec, block_size)
    worst = 0.0
    for step in mixed_steps(block_size):
        for ours, theirs in zip(native.execute(step), reference.execute(step), strict=True):
            expected = dict(theirs.top_logprobs)
            shared = [(expected[token], logprob) for token, logprob in ours.top_logprobs if token in expected]
            assert len(shared) >= 15
            worst = max(worst, *(abs(a - b) for a, b in shared))
    return worst


@pytest.mark.parametrize("isa", native_isas())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_agrees_with_numpy(architecture: str, isa: str) -> None:
    assert largest_difference(spec_of(architecture), 16, isa=isa) < MOST_NATS


@pytest.mark.parametrize("isa", native_isas())
def test_int8_weights_agree_with_numpy(isa: str) -> None:
    assert largest_difference(spec_of("llama"), 16, isa=isa, weight_type="int8") < 3 * MOST_NATS


@pytest.mark.parametrize("isa", native_isas())
@pytest.mark.parametrize("block_size", [16, 32, 48, 256])
def test_any_block_size_agrees_with_numpy(block_size: int, isa: str) -> None:
    assert largest_difference(spec_of("gemma3"), block_size, isa=isa) < MOST_NATS


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
def test_odd_shapes_agree_with_numpy(changes: dict[str, int]) -> None:
    spec = spec_of("llama", **changes)
    plain = tuple(replace(layer, rope=RopeSpec(theta=10_000.0)) for layer in spec.layers)
    assert largest_difference(replace(spec, layers=plain), 16) < MOST_NATS


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
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
        (request([1] * (MAX_TOKENS + 1), 0, MAX_TOKENS + 1, list(range(19))), "more rows than the workspace holds"),
    ],
)
def test_a_step_that_would_leave_its_memory_is_refused(step: ScheduledRequest, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        native_runner(spec_of("llama")).execute(ScheduledStep((step,)))


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
