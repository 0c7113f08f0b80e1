"""Two real servers of a real model behind the real gateway: one is frozen, then killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tests.e2e.test_stopping import Program, program
from tests.gateway_program import gateway_program, write_replicas
from tests.http_server import events_of

DEADLINE_SECONDS = 120
QUESTION = {"model": "tiny", "prompt": "The sea", "max_tokens": 8, "temperature": 0}


def send_to_all(server: Program, number: signal.Signals) -> None:
    for pid in (server.process.pid, *server.children):
        os.kill(pid, number)


async def state(client: httpx.AsyncClient, name: str) -> str:
    replicas = (await client.get("/gateway/replicas")).json()["replicas"]
    (found,) = (replica["state"] for replica in replicas if replica["name"] == name)
    return str(found)


async def until_out(client: httpx.AsyncClient, name: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await state(client, name) in ("up", "warming"):
            await asyncio.sleep(0.05)


async def test_a_frozen_and_a_killed_server_are_left_out_and_a_cut_stream_says_so(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "replicas.toml"
    async with program(model_path("smollm2"), tmp_path) as one, program(model_path("smollm2"), tmp_path) as two:
        write_replicas(path, {"one": one.url, "two": two.url})
        settings = ("--health-interval-seconds", "0.2", "--health-timeout-seconds", "1", "--idle-timeout-seconds", "30")
        async with (
            gateway_program(path, *settings) as front,
            httpx.AsyncClient(base_url=front.url, timeout=DEADLINE_SECONDS) as client,
            httpx.AsyncClient(base_url=two.url) as direct,
        ):

            async def ask(**fields: Any) -> httpx.Response:
                return await client.post("/v1/completions", json={**QUESTION, **fields})

            texts = {(await ask()).json()["choices"][0]["text"] for _ in range(4)}
            assert len(texts) == 1

            send_to_all(one, signal.SIGSTOP)
            await until_out(client, "one")
            for _ in range(4):
                assert (await ask()).json()["choices"][0]["text"] in texts
            send_to_all(one, signal.SIGCONT)
            async with asyncio.timeout(DEADLINE_SECONDS):
                while await state(client, "one") != "warming":
                    await asyncio.sleep(0.05)

            longest = {**QUESTION, "max_tokens": 800, "ignore_eos": True, "stream": True}
            streams = [asyncio.create_task(client.post("/v1/completions", json=longest)) for _ in range(2)]
            async with asyncio.timeout(DEADLINE_SECONDS):
                while (await direct.get("/v1/ledger")).json()["requests"]["running"] == 0:
                    await asyncio.sleep(0.02)
            send_to_all(two, signal.SIGKILL)
            endings = [events_of((await stream).text)[-1] for stream in streams]
            cut = [ending for ending in endings if ending != "[DONE]"]
            assert cut
            assert all(ending["error"]["code"] == "replica_failed" for ending in cut)
            for _ in range(4):
                assert (await ask()).status_code == 200
            assert (await client.get("/v1/models")).status_code == 200
