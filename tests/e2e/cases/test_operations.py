"""OPS: an engine that is gone is told at once, and figures are right whoever left."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from tests.http_server import events_of
from tests.openai_api import CHAT, COMPLETIONS, Api, api_of, error_of
from tests.ullage_server import ullage_server

LONG = {"prompt": "The sea is", "ignore_eos": True, "max_tokens": 3000, "temperature": 0}
SEEN_SECONDS = 30
BACK_SECONDS = 90


async def until_ready_is(api: Api, status: int, seconds: float) -> dict[str, object]:
    async with asyncio.timeout(seconds):
        while (answer := await api.client.get("/health/ready")).status_code != status:
            await asyncio.sleep(0.05)
    return answer.json()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_an_engine_that_dies_or_stands_still_ends_its_requests_and_comes_back(smollm2, tmp_path, how):
    flags = ("--max-model-len=4096", "--kv-memory=128MiB", "--probe-interval-seconds=1")
    with ullage_server(smollm2, tmp_path / "log", *flags) as server:
        async with api_of(server.url) as api:
            await until_ready_is(api, 200, SEEN_SECONDS)
            stream = asyncio.create_task(api.post(COMPLETIONS, **LONG, stream=True))
            plain = asyncio.create_task(api.post(COMPLETIONS, **LONG))
            await api.until(lambda ledger: ledger["requests"]["running"] >= 2)
            first_pid = server.engine_pid
            os.kill(first_pid, how)
            told = await until_ready_is(api, 503, SEEN_SECONDS)
            assert told["status"] in ("stalled", "restarting")
            assert told["reason"]
            for path in ("/health/live", "/v1/models", "/metrics"):
                assert (await api.client.get(path)).status_code == 200
            refused = await api.post(CHAT, messages=[{"role": "user", "content": "hi"}])
            if refused.status_code != 200:  # it may be back already
                assert refused.status_code == 503
                assert error_of(refused)["code"] == "engine_restarting"
                assert int(refused.headers["retry-after"]) >= 1
            async with asyncio.timeout(SEEN_SECONDS):
                assert (await plain).status_code == 503
                *_, last = events_of((await stream).text)
            assert last["error"]["code"] == "engine_failed"
            await until_ready_is(api, 200, BACK_SECONDS)
            assert server.engine_pid != first_pid
            assert (await api.complete("a", max_tokens=4, ignore_eos=True))["usage"]["completion_tokens"] == 4
            assert (await api.metrics())["ullage_engine_restarts_total"] == 1
            await api.until_idle()


async def test_gauges_are_right_when_all_have_left_and_each_request_is_counted_once(smollm2, tmp_path):
    flags = ("--max-model-len=4096", "--kv-memory=128MiB", "--max-num-seqs=4", "--max-waiting-requests=4")
    flags += ("--probe-interval-seconds=0",)
    with ullage_server(smollm2, tmp_path / "log", *flags) as server:
        async with api_of(server.url) as api:
            streams = [asyncio.create_task(api.post(COMPLETIONS, **LONG, stream=True)) for _ in range(8)]
            await api.until(lambda ledger: ledger["requests"]["running"] + ledger["requests"]["waiting"] == 8)
            assert (await api.metrics())["ullage_num_requests_running"] > 0
            too_many = [await api.post(COMPLETIONS, **LONG) for _ in range(5)]
            assert [answer.status_code for answer in too_many] == [429] * 5
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            await api.until_idle()  # nothing is sent meanwhile
            metrics = await api.metrics()
            assert metrics["ullage_num_requests_running"] == metrics["ullage_num_requests_waiting"] == 0
            assert metrics["ullage_kv_cache_usage_perc"] == 0

            ended = [await api.complete("a", max_tokens=9, logit_bias={"2": 100}) for _ in range(5)]
            cut = [await api.complete("a", max_tokens=9, ignore_eos=True) for _ in range(5)]
            for _ in range(5):
                assert (await api.post(COMPLETIONS, prompt="a", temperature=9)).status_code == 400
            metrics = await api.metrics()
            ends = {
                name.partition("=")[2].rstrip("}"): value
                for name, value in metrics.items()
                if name.startswith("ullage_request_success_total{")
            }
            assert {reason: count for reason, count in ends.items() if count} == {"stop": 5, "length": 5, "abort": 8}
            told = sum(answer["usage"]["completion_tokens"] for answer in [*ended, *cut])
            assert metrics["ullage_generation_tokens_total"] >= told
            assert metrics["ullage_request_queue_time_seconds_count"] == 18
            assert metrics["ullage_e2e_request_latency_seconds_count"] == 18
            text = (await api.client.get("/metrics")).text
            assert "cmpl-" not in text
            assert "req-" not in text


async def test_a_name_that_a_client_made_up_is_no_label(server, api):
    messages = [{"role": "user", "content": "hi"}]
    asked = await api.client.post(CHAT, json={"model": "made-up-name", "messages": messages})
    looked_up = await api.client.get("/v1/models/made-up-name")
    assert (asked.status_code, looked_up.status_code) == (404, 404)
    metrics = await api.client.get("/metrics")
    assert metrics.status_code == 200
    assert "made-up-name" not in metrics.text
