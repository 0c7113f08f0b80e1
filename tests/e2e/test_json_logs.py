"""Everything that the whole program says is JSON: its own lines, the libraries' and those of the engine's process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
from tests.e2e.test_stopping import DEADLINE_SECONDS, body, program


async def test_every_line_is_json_whatever_happens(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    flags = ("--log-format", "json", "--log-level", "debug")
    async with (
        program(model_path("smollm2"), tmp_path, *flags) as server,
        httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_SECONDS) as client,
    ):
        await client.post("/v1/completions", json=body(3), headers={"x-request-id": "first"})
        (engine,) = server.children
        os.kill(engine, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (await client.post("/v1/completions", json=body(3))).status_code != 200:
                await asyncio.sleep(0.1)
        server.process.send_signal(signal.SIGHUP)
        server.process.send_signal(signal.SIGTERM)
        assert await server.exit_code() == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert {"uvicorn.error", "ullage.engine.process", "ullage.service.observation"} <= {
        line["logger"] for line in lines
    }
    assert any(line.get("request_id") == "first" and line.get("output_tokens") == 3 for line in lines)
    assert any("SIGKILL" in line["message"] for line in lines)
