"""Whatever ends requests, each is counted once, and all counts agree to the token."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.http_server import running_server, until
from tests.integration.test_http_embedded import make_engine
from tests.integration.test_metrics import figures

from ullage.engine.embedded import EmbeddedEngine

GAUGES = ("ullage_num_requests_running", "ullage_num_requests_waiting", "ullage_kv_cache_usage_perc")


def body(prompt: str, max_tokens: int, **others: object) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **others}


def in_work(engine: EmbeddedEngine) -> int:
    return engine.status().num_running + engine.status().num_waiting


async def read_and_leave(client: httpx.AsyncClient, fields: dict[str, Any], num_lines: int) -> None:
    async with client.stream("POST", "/v1/completions", json={**fields, "stream": True}) as response:
        lines = response.aiter_lines()
        for _ in range(num_lines):
            await anext(lines)


async def hang_up(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_gauges_are_right_within_a_second_of_eight_streams_leaving_at_once() -> None:
    engine = make_engine(step_seconds=0.005)
    limits = httpx.Limits(max_connections=None)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url, limits=limits) as client:
        tasks = [asyncio.create_task(client.post("/v1/completions", json=body(f"p{i}", 100))) for i in range(8)]
        await until(lambda: in_work(engine) == 8 and min(engine.status().num_running, engine.status().num_waiting) > 0)
        found = await figures(client)
        assert [found[name] > 0 for name in GAUGES] == [True] * 3
        await hang_up(tasks)
        async with asyncio.timeout(1):
            while any([(found := await figures(client))[name] for name in GAUGES]):
                await asyncio.sleep(0.02)
    assert found["ullage_request_success_total|abort"] == 8
    assert found["ullage_request_queue_time_seconds_count"] == 8


async def everything_that_happens(client: httpx.AsyncClient, engine: EmbeddedEngine) -> None:
    """Five requests each: a stop token, the limit, left by their client, refused as wrong, too late."""

    async def ask(**fields: Any) -> int:
        return (await client.post("/v1/completions", json=fields)).status_code

    limited = [await ask(**body(f"limit {i}", 5 + i)) for i in range(5)]
    stopped = [await ask(**body(f"stop {i}", 60, stop_token_ids=[*range(1, 100)])) for i in range(5)]
    wrong = [await ask(**body(f"wrong {i}", 5, temperature=9)) for i in range(5)]
    late = [await ask(**body(f"late {i}", 120, request_timeout=0.02)) for i in range(5)]
    assert (limited, stopped, wrong, late) == ([200] * 5, [200] * 5, [400] * 5, [504] * 5)
    for i in range(5):
        await read_and_leave(client, body(f"left {i}", 120), 3)
    await until(lambda: in_work(engine) == 0)


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_each_accepted_request_is_counted_once_and_tokens_add_up(num_choices: int) -> None:
    engine = make_engine(step_seconds=0.01)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        await everything_that_happens(client, engine)
        asking = asyncio.create_task(client.post("/v1/completions", json=body("both left", 110, n=num_choices)))
        await until(lambda: in_work(engine) == num_choices)
        await hang_up([asking])
        await until(lambda: in_work(engine) == 0)
        found = await figures(client)
    ends = {reason: found[f"ullage_request_success_total|{reason}"] for reason in ("stop", "length", "abort", "error")}
    assert ends == {"stop": 5, "length": 5, "abort": 5 + num_choices, "error": 5}
    num_accepted = sum(ends.values())
    for name in ("request_queue_time_seconds", "e2e_request_latency_seconds", "request_prompt_tokens"):
        assert found[f"ullage_{name}_count"] == num_accepted
    assert found["ullage_request_generation_tokens_count"] == num_accepted
    assert found["ullage_request_generation_tokens_sum"] == found["ullage_generation_tokens_total"] > 50
    num_gaps = found["ullage_inter_token_latency_seconds_count"]
    assert num_gaps == found["ullage_generation_tokens_total"] - found["ullage_time_to_first_token_seconds_count"]
    assert found["ullage_refusals_total|invalid_request_error"] == 5
    assert found["ullage_aborts_total|client"] == 5 + num_choices
    assert found["ullage_aborts_total|deadline"] == 5


async def test_refusals_are_counted_by_their_code_and_a_full_queue_by_its_bound_too() -> None:
    engine = make_engine(step_seconds=0.01)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        posts = [("nope", {"prompt": "a"}), ("tiny", {"prompt": "a" * 300})]
        for model, fields in posts:
            await client.post("/v1/completions", json={"model": model, **fields})
        await client.get("/nothing/here")
        await client.get("/v1/completions")
        tasks = [asyncio.create_task(client.post("/v1/completions", json=body("q", 100, n=4))) for _ in range(11)]
        await until(lambda: in_work(engine) == 44)
        assert (await client.post("/v1/completions", json=body("one more", 5))).status_code == 429
        found = await figures(client)
        await hang_up(tasks)
    refused = {key.partition("|")[2]: value for key, value in found.items() if key.startswith("ullage_refusals_total|")}
    assert refused == {
        "model_not_found": 1,
        "context_length_exceeded": 1,
        "unknown_url": 1,
        "method_not_allowed": 1,
        "queue_full": 1,
    }
    assert found["ullage_queue_refusals_total|max_waiting_requests"] == 1
