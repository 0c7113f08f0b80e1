"""The real server in front of a real engine process that stops, dies or hangs while requests run: everybody is told in
time, nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fake_engine_process import HANG_TOKEN
from tests.http_server import RunningServer, events_of, running_server, until
from tests.scripted_engine import ByteTokenizer

from ullage.engine.build import EngineOptions
from ullage.engine.process import EngineProcess
from ullage.engine.wire import Opening
from ullage.service.config import ServiceConfig
from ullage.service.known_answer import KnownQuestion

SEEN_SECONDS = 10
"""A wedged engine must be seen by then."""
LONG = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True}


@asynccontextmanager
async def server_and_engine(tmp_path: Path) -> AsyncIterator[tuple[RunningServer, EngineProcess]]:
    """With the supervision that servers have."""
    opening = Opening(f"serve:{tmp_path}/starts", EngineOptions())
    engine = EngineProcess(opening, 32, module="tests.fake_engine_process")
    engine.load()
    question = KnownQuestion.of(ByteTokenizer(), engine.max_request_tokens, None)
    config = ServiceConfig(port=0, drain_seconds=0.5, probe_interval_seconds=1.0)
    async with running_server(engine, config=config, question=question) as server:
        yield server, engine


async def ready(client: httpx.AsyncClient) -> tuple[int, str]:
    answer = await client.get("/health/ready")
    return answer.status_code, answer.json()["status"]


async def until_ready_is(client: httpx.AsyncClient, status: int, seconds: float) -> str:
    async with asyncio.timeout(seconds):
        while (told := await ready(client))[0] != status:
            await asyncio.sleep(0.05)
    return told[1]


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    return await client.post("/v1/completions", json=body, timeout=60)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_an_engine_that_stops_or_dies_in_the_middle_of_streams(tmp_path: Path, how: signal.Signals) -> None:
    async with (
        server_and_engine(tmp_path) as (server, engine),
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        assert await ready(client) == (200, "ready")
        os.kill(engine._child.pid, signal.SIGSTOP)
        stream = asyncio.create_task(ask(client, {**LONG, "stream": True}))
        plain = asyncio.create_task(ask(client, LONG))
        await until(lambda: len(engine._accepted) == 2)
        os.kill(engine._child.pid, how)

        state = await until_ready_is(client, 503, SEEN_SECONDS)
        assert state in ("stalled", "restarting")
        for path in ("/health/live", "/v1/models", "/metrics"):
            assert (await client.get(path)).status_code == 200
        refused = await ask(client, LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_restarting")
        assert int(refused.headers["retry-after"]) >= 1
        async with asyncio.timeout(5):
            assert (await plain).status_code == 503
            events = events_of((await stream).text)
        assert events[-1]["error"]["code"] == "engine_failed"

        await until_ready_is(client, 200, 30)
        assert (await ask(client, LONG)).json()["usage"]["completion_tokens"] == 200
        found = (await client.get("/metrics")).text
    assert "ullage_engine_restarts_total 1.0" in found
    assert 'ullage_request_success_total{finished_reason="error"} 2.0' in found
    assert 'ullage_request_success_total{finished_reason="length"} 1.0' in found


async def test_an_idle_engine_that_stops_is_seen_too(tmp_path: Path) -> None:
    async with (
        server_and_engine(tmp_path) as (server, engine),
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        assert await ready(client) == (200, "ready")
        os.kill(engine._child.pid, signal.SIGSTOP)
        await until_ready_is(client, 503, SEEN_SECONDS)
        await until_ready_is(client, 200, 30)


async def test_a_step_that_hangs_is_seen(tmp_path: Path) -> None:
    async with (
        server_and_engine(tmp_path) as (server, _),
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        hanging = asyncio.create_task(ask(client, {**LONG, "prompt": [1, HANG_TOKEN]}))
        await until_ready_is(client, 503, SEEN_SECONDS)
        assert (await hanging).status_code == 503
        await until_ready_is(client, 200, 30)
