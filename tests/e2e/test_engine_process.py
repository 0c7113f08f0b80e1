"""The real model in a process of its own says what it says in this one, before and after it was killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ullage.engine.build import BuiltEngine, EngineOptions, build_engine
from ullage.engine.client import GenerationOutput, GenerationRequest
from ullage.engine.launch import launch_engine
from ullage.engine.output import merge_outputs
from ullage.engine.sampling_params import SamplingParams
from ullage.plan.machine import resident_bytes

DEADLINE_SECONDS = 120
MEASURED_LATER_BYTES = 64 << 20
"""Pages that are given back between the engine's start and now."""
OPTIONS = EngineOptions(kv_memory=64 << 20, max_model_len=1024)
SAMPLING = [
    SamplingParams(max_tokens=30, temperature=0.0, logprobs=3),
    SamplingParams(max_tokens=30, temperature=0.9, top_k=2**70, seed=2**64 - 1, logit_bias={11: -100.0}),
    SamplingParams(max_tokens=30, temperature=0.0, stop=("the", "\U0001f600"), min_tokens=4),
]


def requests_of(built: BuiltEngine, *, streamed: bool) -> list[GenerationRequest]:
    prompts = ["The harbour master wrote down", "Explain in one sentence what a KV cache is:", "The sea is"]
    token_ids = [tuple(built.tokenizer.encode(prompt)) for prompt in prompts]
    return [
        GenerationRequest(prompt, sampling, streamed=streamed, cache_salt="a")
        for prompt, sampling in zip(token_ids, SAMPLING, strict=True)
    ]


async def one_by_one(built: BuiltEngine, *, streamed: bool) -> list[GenerationOutput]:
    requests = requests_of(built, streamed=streamed)
    return [merge_outputs([output async for output in built.engine.submit(request)]) for request in requests]


def said(outputs: list[GenerationOutput]) -> list[tuple[object, ...]]:
    return [(o.text, o.token_ids, o.logprobs, o.finish_reason, o.stop_reason, o.num_output_tokens) for o in outputs]


@pytest.mark.timeout(2 * DEADLINE_SECONDS)
async def test_a_process_of_its_own_changes_nothing_and_a_restart_neither(model_path: Callable[[str], Path]) -> None:
    embedded = build_engine(model_path("smollm2"), OPTIONS)
    await embedded.engine.start()
    expected = said(await one_by_one(embedded, streamed=True))
    await embedded.engine.stop()
    assert len({text for text, *_ in expected}) == len(SAMPLING)

    built = launch_engine(model_path("smollm2"), OPTIONS)
    await built.engine.start()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert said(await one_by_one(built, streamed=True)) == expected
            assert said(await one_by_one(built, streamed=False)) == expected
            os.kill(built.engine._child.pid, signal.SIGKILL)
            while built.engine.status().num_restarts == 0 or not built.engine.status().healthy:
                await asyncio.sleep(0.01)
            first, *_ = restarted = await one_by_one(built, streamed=True)
            assert said(restarted) == expected
            assert first.num_cached_tokens == 0
    finally:
        await built.engine.stop()


async def test_the_memory_of_both_processes_is_in_the_plan(model_path: Callable[[str], Path]) -> None:
    built = launch_engine(model_path("smollm2"), OPTIONS)
    await built.engine.start()
    try:
        accounts = built.engine.ledger().accounts
        assert built.plan.planned_bytes() == {name: account.planned_bytes for name, account in accounts.items()}
        assert accounts["runtime"].allocated_bytes > accounts["runtime"].planned_bytes // 2
        engine_bytes = built.engine.resident_bytes()
        taken = sum(account.allocated_bytes for name, account in accounts.items() if name != "headroom")
        assert engine_bytes > accounts["weights"].allocated_bytes
        assert engine_bytes < taken <= engine_bytes + resident_bytes() + MEASURED_LATER_BYTES
    finally:
        await built.engine.stop()
