"""What the native runner promises beside the numbers: see ``test_native_agreement`` for these."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.exact_models import (
    NUM_BLOCKS,
    ROUNDED_TYPES,
    SIZES,
    ExactModel,
    mixed_steps,
    native_runner,
    spec_of,
    tokens_of,
)
from tests.native_runners import request
from tests.random_model import RandomModel, tables_of

from ullage.base.errors import ConfigError, EngineError
from ullage.engine.sampler import sample
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import RELEASED_BLOCK, ScheduledRequest, ScheduledStep
from ullage.kernels.layout import KV_TYPES, KVType, native_memory, tensor_types, weight_layout, workspace_layout
from ullage.kernels.native import NativeDecoder, native_isas
from ullage.kernels.program import OPERATOR_KINDS
from ullage.kernels.weight_formats import WeightType
from ullage.models.layer_groups import layer_groups
from ullage.models.spec import ModelSpec
from ullage.plan.ledger import MemoryLedger

every_kernel = pytest.mark.parametrize(("isa", "weight_type"), list(product(native_isas(), ROUNDED_TYPES)))


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


@pytest.mark.parametrize("threads", [1, 3])
def test_tokens_are_those_that_the_specification_samples_from_the_same_logits(threads: int) -> None:
    spec, prompt = spec_of("llama"), tokens_of(9)
    options: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.9, "logprobs": 3},
        {"temperature": 0.0, "logit_bias": {3: 100.0}, "logprobs": 0},
        {"temperature": 1.5, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
        {"temperature": 0.7, "top_k": 5, "min_p": 0.1},
    ]
    requests = [
        replace(
            request(prompt, 0, 9, [[n]], request_id=n), sampling=SamplingParams(**each), seed=n, num_prompt_tokens=4
        )
        for n, each in enumerate(options)
    ]
    requests[2] = replace(requests[2], needs_logits=False)
    requests[4] = replace(requests[4], banned_token_ids=list(range(50)))
    step, runner = ScheduledStep(tuple(requests)), native_runner(spec, threads=threads)
    specified = sample(runner.compute_logits(step), [each for each in requests if each.needs_logits])
    sampled = runner.execute(step)
    assert [(each.request_id, each.token_id) for each in sampled] == [(e.request_id, e.token_id) for e in specified]
    assert dict(sampled[1].top_logprobs) == pytest.approx(dict(specified[1].top_logprobs), abs=2e-6)


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
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_blocks_that_no_token_sees_need_not_be_there(isa: str, weight_type: WeightType, kv_type: KVType) -> None:
    spec, tokens = spec_of("gemma3"), tokens_of(100)
    tables = tables_of(spec, range(7), NUM_BLOCKS)
    whole, windowed = (native_runner(spec, isa=isa, weight_type=weight_type, kv_type=kv_type) for _ in range(2))
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
        (
            request([1] * (SIZES.max_tokens + 1), 0, SIZES.max_tokens + 1, [list(range(19))]),
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
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_request_that_went_wrong_leaves_nothing_in_its_blocks(length: int, kv_type: KVType) -> None:
    spec = spec_of("llama")
    used, fresh = (native_runner(spec, kv_type=kv_type, model=PoisonedModel(spec, "bf16")) for _ in range(2))
    [wrong] = used.execute(ScheduledStep((request([7] * 32, 0, 32, [[3, 4]], request_id=1),)))
    assert wrong.error is not None
    tokens = [token for token in tokens_of(60) if token != 7][:length]
    step = ScheduledStep((request(tokens, 0, length, [[3, 4]]),))
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


def test_the_time_of_each_kind_of_operator_and_of_sampling_grows_with_the_steps() -> None:
    spec = spec_of("llama")
    runner = native_runner(spec)
    stages = [*OPERATOR_KINDS, "sample"]
    seen = runner.stage_seconds()
    assert seen == dict.fromkeys(stages, 0.0)
    for step in mixed_steps(spec, 16):
        runner.execute(step)
        now = runner.stage_seconds()
        assert all(now[stage] > seen[stage] for stage in stages)
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
