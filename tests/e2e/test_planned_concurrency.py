"""What ``ullage plan`` says of requests at once is what the engine of a server reaches: so many run, one more waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from ullage.engine.build import EngineOptions
from ullage.engine.client import EngineClient, GenerationRequest
from ullage.engine.launch import launch_engine
from ullage.engine.sampling_params import SamplingParams
from ullage.plan.deployment import PlanOptions, load_model, plan_deployment

CONTEXT, NEW_TOKENS = 512, 64
DEADLINE_SECONDS = 200


def stated(path: Path, kv_memory: int) -> int:
    options = PlanOptions(engine="ullage", kv_memory=str(kv_memory), max_model_len=CONTEXT, max_num_batched_tokens=512)
    return plan_deployment(load_model(str(path)), options).largest_concurrency()


def request(number: int) -> GenerationRequest:
    """As long as the context; no two begin alike."""
    prompt = tuple((number * 1009 + 7 * i) % 40_000 + 100 for i in range(CONTEXT - NEW_TOKENS))
    return GenerationRequest(prompt, SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True))


async def most_at_once(engine: EngineClient, num_requests: int) -> tuple[int, int]:
    """(most that ran at one time, most that waited while as many ran), looked at all the while."""

    async def finish(number: int) -> None:
        *_, last = [output async for output in engine.submit(request(number))]
        assert (last.finish_reason, last.num_output_tokens) == ("length", NEW_TOKENS)

    work = asyncio.gather(*[finish(number) for number in range(num_requests)])
    seen: set[tuple[int, int]] = set()
    while not work.done():
        status = engine.status()
        seen.add((status.num_running, status.num_waiting))
        await asyncio.sleep(0.002)
    await work
    most = max(running for running, _ in seen)
    return most, max(waiting for running, waiting in seen if running == most)


@pytest.mark.timeout(2 * DEADLINE_SECONDS)
@pytest.mark.parametrize(
    ("name", "kv_memory", "expected"),
    [
        ("smollm2", 64 << 20, 5),
        ("smollm2", 128 << 20, 11),
        ("smollm2", 256 << 20, 22),
        ("gemma3-270m", 128 << 20, 14),
    ],
)
async def test_the_concurrency_that_the_plan_states_is_reached_and_not_passed(
    model_path: Callable[[str], Path], name: str, kv_memory: int, expected: int
) -> None:
    path = model_path(name)
    count = stated(path, kv_memory)
    assert count == expected
    options = EngineOptions(
        kv_memory=kv_memory, max_model_len=CONTEXT, max_num_seqs=count + 8, admission="guaranteed", target_itl_ms=0
    )
    built = launch_engine(path, options)
    await built.engine.start()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await most_at_once(built.engine, count) == (count, 0)
            assert await most_at_once(built.engine, count + 1) == (count, 1)
        status = built.engine.status()
        assert status.num_preemptions == 0
        assert status.num_generated_tokens == (2 * count + 1) * NEW_TOKENS
    finally:
        await built.engine.stop()
