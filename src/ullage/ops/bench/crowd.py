"""More than fits: what a crowd in a small KV pool costs, and what a flooding tenant costs another.

*Small pool.* Many clients send one request each, all at once, to an engine whose pool holds a few of them. Against it
stands an engine with room for everything that runs as many at once as fit into the small pool on average.

*Two tenants.* A quiet one, whose few clients each send a request when they have the last answer, first alone, then
beside one with far more clients.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ullage.engine.client import EngineClient, GenerationOutput, GenerationRequest
from ullage.engine.sampling_params import SamplingParams

PROMPT_TOKENS, NEW_TOKENS = (16, 150), (16, 150)
SHARE_STOPPED = 0.5  # of requests that end at a common token, long before their limit


@dataclass(frozen=True, slots=True)
class Ended:
    """How one request went."""

    tenant: str
    num_prompt_tokens: int
    num_output_tokens: int
    finish_reason: str | None
    queue_seconds: float
    first_token_seconds: float
    num_preemptions: int


def random_requests(count: int, vocab_size: int, stop_token_ids: Sequence[int], seed: int) -> list[GenerationRequest]:
    """Prompts without common beginnings, limits of any length, half of which are never reached."""
    draw = random.Random(seed)
    requests = []
    for _ in range(count):
        prompt = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(*PROMPT_TOKENS)))
        stopped = draw.random() < SHARE_STOPPED
        sampling = SamplingParams(
            max_tokens=draw.randint(*NEW_TOKENS),
            ignore_eos=True,
            seed=draw.randrange(2**32),
            stop_token_ids=tuple(stop_token_ids) if stopped else (),
        )
        requests.append(GenerationRequest(prompt, sampling))
    return requests


async def run_request(engine: EngineClient, request: GenerationRequest) -> Ended:
    """:raises UllageError: it was refused or failed"""
    last: GenerationOutput | None = None
    async for output in engine.submit(request):
        if output.error is not None:
            raise output.error
        last = output
    assert last is not None
    assert last.times is not None
    times = last.times
    return Ended(
        tenant=request.tenant,
        num_prompt_tokens=last.num_prompt_tokens,
        num_output_tokens=last.num_output_tokens,
        finish_reason=last.finish_reason,
        queue_seconds=(times.started_at or times.finished_at) - times.arrived_at,
        first_token_seconds=(times.first_token_at or times.finished_at) - times.arrived_at,
        num_preemptions=times.num_preemptions,
    )


async def run_all(engine: EngineClient, requests: Sequence[GenerationRequest]) -> dict[str, Any]:
    """All at once; figures of the whole."""
    began = time.perf_counter()
    ended = await asyncio.gather(*[run_request(engine, request) for request in requests])
    seconds = time.perf_counter() - began
    num_output_tokens = sum(one.num_output_tokens for one in ended)
    return {
        "seconds": seconds,
        "num_requests": len(ended),
        "num_ended": sum(one.finish_reason in ("stop", "length") for one in ended),
        "num_output_tokens": num_output_tokens,
        "tokens_per_second": num_output_tokens / seconds,
        "mean_tokens": statistics.mean(one.num_prompt_tokens + one.num_output_tokens for one in ended),
        "longest_queue_seconds": max(one.queue_seconds for one in ended),
        "num_preemptions": sum(one.num_preemptions for one in ended),
        "most_preemptions_of_one": max(one.num_preemptions for one in ended),
    }


@dataclass(slots=True)
class ClosedLoop:
    """Clients of one tenant that always have a request under way."""

    tenant: str
    num_clients: int
    num_prompt_tokens: int = 64
    num_new_tokens: int = 64
    """Half as many to half as many more."""
    num_tokens: int = 0
    """Generated within the time that counts."""
    ended: list[Ended] = field(default_factory=list)
    """Requests that began and ended within it."""


async def run_tenants(
    engine: EngineClient,
    loops: Sequence[ClosedLoop],
    *,
    vocab_size: int,
    warm_up_seconds: float,
    seconds: float,
    seed: int,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Runs all loops side by side; what they did after the warm-up stands in them then."""
    draw = random.Random(seed)
    counting = False

    async def client(loop: ClosedLoop) -> None:
        while True:
            prompt = tuple(draw.randrange(vocab_size) for _ in range(loop.num_prompt_tokens))
            num_new = draw.randint(loop.num_new_tokens // 2, loop.num_new_tokens * 3 // 2)  # or all keep in step
            sampling = SamplingParams(max_tokens=num_new, ignore_eos=True, seed=draw.randrange(2**32))
            began_counted = counting
            request = GenerationRequest(prompt, sampling, tenant=loop.tenant)
            last = None
            async for output in engine.submit(request):
                if output.error is not None:
                    raise output.error
                loop.num_tokens += counting * len(output.token_ids)
                last = output
            if began_counted and last is not None and last.times is not None and last.times.first_token_at is not None:
                wait = last.times.first_token_at - last.times.arrived_at
                queued = (last.times.started_at or last.times.finished_at) - last.times.arrived_at
                preemptions = last.times.num_preemptions
                one = Ended(loop.tenant, len(prompt), last.num_output_tokens, "length", queued, wait, preemptions)
                loop.ended.append(one)

    tasks = [asyncio.ensure_future(client(loop)) for loop in loops for _ in range(loop.num_clients)]
    timer = asyncio.ensure_future(sleep(warm_up_seconds))
    await asyncio.wait([*tasks, timer], return_when=asyncio.FIRST_COMPLETED)
    counting = True
    timer = asyncio.ensure_future(sleep(seconds))
    done, _ = await asyncio.wait([*tasks, timer], return_when=asyncio.FIRST_COMPLETED)
    counting = False
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done - {timer}:
        task.result()


async def measure_tenants(
    engine: EngineClient,
    *,
    vocab_size: int,
    quiet_clients: int,
    flooding_clients: int,
    seconds: float,
    warm_up_seconds: float = 5.0,
    seed: int = 0,
) -> Mapping[str, Any]:
    """The quiet tenant alone and beside the flooding one."""
    alone = ClosedLoop("quiet", quiet_clients)
    timing = {"vocab_size": vocab_size, "warm_up_seconds": warm_up_seconds, "seconds": seconds}
    await run_tenants(engine, [alone], seed=seed, **timing)  # type: ignore[arg-type]
    quiet, flooding = replace(alone, num_tokens=0, ended=[]), ClosedLoop("flooding", flooding_clients)
    await run_tenants(engine, [quiet, flooding], seed=seed + 1, **timing)  # type: ignore[arg-type]
    alone_seconds = statistics.median(one.first_token_seconds for one in alone.ended)
    beside_seconds = statistics.median(one.first_token_seconds for one in quiet.ended)
    return {
        "quiet_clients": quiet_clients,
        "flooding_clients": flooding_clients,
        "share_of_tokens": quiet.num_tokens / (quiet.num_tokens + flooding.num_tokens),
        "alone_tokens_per_second": alone.num_tokens / seconds,
        "quiet_tokens_per_second": quiet.num_tokens / seconds,
        "flooding_tokens_per_second": flooding.num_tokens / seconds,
        "alone_median_first_token_seconds": alone_seconds,
        "quiet_median_first_token_seconds": beside_seconds,
        "first_token_ratio": beside_seconds / alone_seconds,
        "quiet_median_queue_seconds": statistics.median(one.queue_seconds for one in quiet.ended),
        "num_quiet_requests": len(quiet.ended),
    }
