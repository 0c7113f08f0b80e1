"""The whole program on a real model is told to stop: in the middle of streams, without time for them, twice, while it
loads. Nothing is left of it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http_server import events_of

DEADLINE_SECONDS = 120
SIGNALS = [signal.SIGTERM, signal.SIGINT]


@dataclass
class Program:
    process: asyncio.subprocess.Process
    url: str
    children: set[int]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def exit_code(self) -> int:
        """After it has ended, when nothing is left of it."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            code = await self.process.wait()
            while any(os.path.exists(f"/proc/{pid}") for pid in self.children):
                await asyncio.sleep(0.01)
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", self.port))
        return code


@asynccontextmanager
async def program(path: Path, folder: Path, *flags: str) -> AsyncIterator[Program]:
    """``ullage serve``, ready."""
    process = await start(path, folder, *flags)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert process.stdout is not None
            while not (match := re.search(rb"serving on (http://\S+)/v1", await process.stdout.readline())):
                assert process.returncode is None
        yield Program(process, match[1].decode(), children_of(process.pid))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def start(path: Path, folder: Path, *flags: str) -> asyncio.subprocess.Process:
    """Its log goes to a file in the folder."""
    arguments = ["--port", "0", "--max-model-len", "1024", "--kv-memory", "64MiB", "--max-num-seqs", "2", *flags]
    with (folder / "log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ullage", "serve", str(path), "--served-model-name", "tiny", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=os.environ | {"ULLAGE_HOME": str(folder), "TMPDIR": str(folder)},
        )


def children_of(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(child) for task in tasks for child in (task / "children").read_text().split()}


def body(max_tokens: int, *, stream: bool = False) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "The sea", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}


async def begin(client: httpx.AsyncClient, *bodies: dict[str, Any]) -> list[asyncio.Task[httpx.Response]]:
    """Asks, and returns when all were accepted."""
    tasks = [asyncio.create_task(client.post("/v1/completions", json=fields)) for fields in bodies]
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            requests = (await client.get("/v1/ledger")).json()["requests"]
            if requests["running"] + requests["waiting"] == len(tasks):
                break
            await asyncio.sleep(0.01)
    return tasks


@pytest.mark.parametrize("number", SIGNALS)
async def test_what_was_accepted_ends_as_it_should_and_what_comes_later_is_told_when_to_return(
    number: signal.Signals, model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    async with (
        program(model_path("smollm2"), tmp_path, "--drain-seconds", "100") as server,
        httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_SECONDS) as client,
        httpx.AsyncClient(base_url=server.url) as kept_alive,
    ):
        while (await kept_alive.get("/health/ready")).status_code != 200:  # the weights may still be read
            await asyncio.sleep(0.01)
        tasks = await begin(client, body(200, stream=True), body(100), *[body(20)] * 3)
        server.process.send_signal(number)
        while (told := await kept_alive.get("/health/ready")).status_code == 200:
            await asyncio.sleep(0.01)
        assert (told.status_code, told.json()["status"]) == (503, "draining")
        refused = await kept_alive.post("/v1/completions", json=body(5))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "100")
        async with httpx.AsyncClient(base_url=server.url) as new:
            assert (await new.post("/v1/completions", json=body(5))).status_code == 503
        stream, *answers = await asyncio.gather(*tasks)
        assert await server.exit_code() == 0
    *chunks, end = events_of(stream.text)
    assert end == "[DONE]"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [100, 20, 20, 20]
    assert not list(tmp_path.glob("ullage-*"))


async def test_what_does_not_end_in_time_ends_with_an_error_and_the_exit_code_says_so(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    async with (
        program(model_path("smollm2"), tmp_path, "--drain-seconds", "0.3") as server,
        httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_SECONDS) as client,
    ):
        tasks = await begin(client, body(900, stream=True), body(900), body(900))
        server.process.send_signal(signal.SIGTERM)
        stream, *answers = await asyncio.gather(*tasks)
        assert await server.exit_code() == 1
    assert events_of(stream.text)[-1]["error"]["code"] == "server_stopping"
    assert [answer.status_code for answer in answers] == [503, 503]


async def test_a_second_signal_forces_the_exit(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    async with (
        program(model_path("smollm2"), tmp_path, "--drain-seconds", "100") as server,
        httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_SECONDS) as client,
    ):
        tasks = await begin(client, body(900, stream=True))
        server.process.send_signal(signal.SIGTERM)
        while (await client.get("/health/ready")).status_code == 200:
            await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert await server.exit_code() == 1
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_stop_while_the_model_is_loaded_leaves_nothing(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    process = await start(model_path("smollm2"), tmp_path)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (children := children_of(process.pid)):
            assert process.returncode is None
            await asyncio.sleep(0.005)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        while any(os.path.exists(f"/proc/{pid}") for pid in children):
            await asyncio.sleep(0.01)
    assert not list(tmp_path.glob("ullage-*"))
