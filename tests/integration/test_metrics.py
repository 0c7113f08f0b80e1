"""GET /metrics after real requests: counts agree with the answers to the token, and gauges are right at once."""

from __future__ import annotations

import asyncio

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.http_server import app_client, running_server, until
from tests.integration.test_http_embedded import NUM_BLOCKS, make_engine
from tests.scripted_engine import ScriptedEngine, outputs_for


async def figures(client: httpx.AsyncClient) -> dict[str, float]:
    """Each sample by its name and labels."""
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        sample.name + "".join(f"|{value}" for name, value in sample.labels.items() if name != "le"): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def body(prompt: str, max_tokens: int = 8) -> dict[str, object]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}


async def test_tokens_and_requests_agree_with_the_answers():
    async with app_client(make_engine()) as client:
        answers = await asyncio.gather(
            *[client.post("/v1/completions", json=body(f"prompt {i}", 5 + i)) for i in range(6)]
        )
        usages = [answer.json()["usage"] for answer in answers]
        found = await figures(client)
    assert found["ullage_generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages) == 45
    assert found["ullage_request_success_total|length"] == 6
    assert found["ullage_e2e_request_latency_seconds_count"] == 6
    assert found["ullage_time_to_first_token_seconds_count"] == 6
    assert found["ullage_request_queue_time_seconds_count"] == 6
    assert found["ullage_request_time_per_output_token_seconds_count"] == 6
    computed = found["ullage_prompt_tokens_total"] + found["ullage_prefix_cache_hits_total"]
    assert computed >= sum(usage["prompt_tokens"] for usage in usages)
    assert found["ullage_kv_blocks|held"] + found["ullage_kv_blocks|promised"] + found["ullage_kv_blocks|free"] == (
        NUM_BLOCKS
    )
    assert found["ullage_engine_state|ready"] == 1
    assert found["ullage_ledger_planned_bytes|kv_pool"] > 0


async def test_gauges_are_right_as_soon_as_all_clients_have_left():
    engine = make_engine(step_seconds=0.002)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        tasks = [asyncio.create_task(client.post("/v1/completions", json=body(f"p{i}", 100))) for i in range(6)]
        await until(lambda: engine.status().num_running > 1)
        assert (await figures(client))["ullage_num_requests_running"] > 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: engine.status().num_running + engine.status().num_waiting == 0)
        found = await figures(client)
    assert (found["ullage_num_requests_running"], found["ullage_num_requests_waiting"]) == (0, 0)
    assert found["ullage_kv_cache_usage_perc"] == 0
    assert found["ullage_aborts_total|client"] == 6


async def test_an_engine_that_failed_is_told():
    engine = ScriptedEngine(lambda request: outputs_for(request, ["a"]))
    engine.healthy = False
    async with app_client(engine) as client:
        assert "ullage_engine_state" in (await client.get("/metrics")).text
