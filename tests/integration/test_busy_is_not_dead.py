"""An engine that computes for long is never called dead; one that neither computes nor answers is."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import httpx
from tests.engine_requests import collect, request
from tests.fake_engine import make_core
from tests.fake_engine_process import SLOW_TOKEN, spin
from tests.http_server import running_server, until
from tests.integration.test_engine_process import QUICK
from tests.scripted_engine import ByteTokenizer

from ullage.engine.build import EngineOptions
from ullage.engine.embedded import EmbeddedEngine
from ullage.engine.fake_runner import FakeRunner
from ullage.engine.process import EngineProcess
from ullage.engine.step import SampledToken, ScheduledStep
from ullage.engine.wire import Opening
from ullage.service.config import ServiceConfig
from ullage.service.known_answer import KnownQuestion


async def test_a_step_longer_than_every_limit_leaves_the_server_ready(tmp_path: Path) -> None:
    opening = Opening(f"serve:{tmp_path}/starts", EngineOptions())
    engine = EngineProcess(opening, 32, module="tests.fake_engine_process", supervision=QUICK)
    engine.load()
    question = KnownQuestion.of(ByteTokenizer(), engine.max_request_tokens, None)
    config = ServiceConfig(port=0, probe_interval_seconds=0.1, probe_timeout_seconds=0.1)
    async with (
        running_server(engine, config=config, question=question) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        body = {"model": "tiny", "prompt": [1, SLOW_TOKEN], "max_tokens": 3, "ignore_eos": True}
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: engine.status().num_open == 1)
        told = []
        longest_seconds = 0.0
        while not asking.done():
            told.append((await client.get("/health/ready")).status_code)
            longest_seconds = max(longest_seconds, engine.status().seconds_since_step)
            await asyncio.sleep(0.02)
        assert (await asking).status_code == 200
        assert engine.status().num_restarts == 0
    assert longest_seconds > QUICK.quiet_seconds
    assert set(told) == {200}


class HeldRunner(FakeRunner):
    """Computes, or waits, in its first step, as a test says."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.let_go = threading.Event()
        self.computes = True

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        while self.computes and not self.let_go.is_set():
            spin(0.01)
        self.let_go.wait()
        return super().execute(step)


async def test_a_thread_that_computes_is_not_quiet_and_one_that_waits_is() -> None:
    core = make_core(runner_class=HeldRunner)
    runner = core.runner
    assert isinstance(runner, HeldRunner)
    engine = EmbeddedEngine(core, ByteTokenizer())
    await engine.start()
    asking = asyncio.create_task(collect(engine.submit(request([1, 2], 3))))
    computed_until = time.monotonic() + 1
    while time.monotonic() < computed_until:
        assert engine.status().seconds_quiet < 0.5
        await asyncio.sleep(0.02)
    runner.computes = False
    await until(lambda: engine.status().seconds_quiet > 0.3)
    runner.let_go.set()
    await asking
    assert engine.status().seconds_quiet < 0.3
    await engine.stop()
