"""A real engine process on a fake runner: it dies, stops, hangs, floods; its users always get their end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.engine_requests import collect, request, tokens_of, until
from tests.fake_engine import expected_tokens, make_core
from tests.fake_engine_process import EXIT_TOKEN, HANG_TOKEN, RAISE_TOKEN, SLOW_TOKEN, SPIN_TOKEN
from tests.scripted_engine import ByteTokenizer, scripted_model

from ullage.base.errors import (
    ContextLengthError,
    EngineError,
    EngineRestartingError,
    InvalidRequestError,
    PlanError,
    QueueFullError,
)
from ullage.engine.build import EngineOptions
from ullage.engine.process import EngineProcess, Supervision
from ullage.engine.wire import Opening
from ullage.service import health
from ullage.service.config import ServiceConfig
from ullage.service.service import Service

DEADLINE_SECONDS = 60
MAX_REQUESTS = 32
MODULE = "tests.fake_engine_process"
QUICK = Supervision(
    look_seconds=0.05,
    quiet_seconds=1.5,
    longest_step_seconds=4.0,
    loading_quiet_seconds=1.0,
    first_pause_seconds=0.01,
    longest_pause_seconds=0.02,
    max_restarts=3,
)
FAILURES = [
    (EXIT_TOKEN, "exit code 7"),
    (HANG_TOKEN, "did nothing"),
    (SPIN_TOKEN, "a step of the engine didn't end"),
    (RAISE_TOKEN, "the device fell off"),
]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch) -> Iterator[None]:
    """No process, file or socket outlives an engine that was stopped."""
    folder = tempfile.mkdtemp(prefix="u")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    gc.collect()
    files, children = set(os.listdir("/proc/self/fd")), child_pids()
    yield
    gc.collect()
    assert child_pids() == children
    assert len(os.listdir("/proc/self/fd")) <= len(files)
    os.rmdir(folder)


def child_pids() -> set[str]:
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


def open_engine(tmp_path: Path, name: str = "serve") -> EngineProcess:
    opening = Opening(f"{name}:{tmp_path}/starts", EngineOptions())
    return EngineProcess(opening, MAX_REQUESTS, module=MODULE, supervision=QUICK)


@asynccontextmanager
async def running(tmp_path: Path, name: str = "serve") -> AsyncIterator[EngineProcess]:
    engine = open_engine(tmp_path, name)
    engine.load()
    await engine.start()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield engine
    finally:
        await engine.stop()


def is_idle(engine: EngineProcess) -> bool:
    status = engine.status()
    return status.detail == "idle" and status.num_running == 0 and engine.ledger().kv_reserved_bytes == 0


async def assert_serves(engine: EngineProcess) -> None:
    outputs = await collect(engine.submit(request([1, 2, 3], 20)))
    assert tokens_of(outputs) == expected_tokens(make_core(), [1, 2, 3], 20)
    assert [output.finish_reason for output in outputs if output.finish_reason] == ["length"]


async def test_streams_give_the_same_as_in_this_process(tmp_path):
    prompts = [[i % 7] * (1 + i % 20) + [i] for i in range(MAX_REQUESTS)]
    async with running(tmp_path) as engine:
        streams = [engine.submit(request(prompt)) for prompt in prompts]
        for prompt, outputs in zip(prompts, await asyncio.gather(*map(collect, streams)), strict=True):
            expected = expected_tokens(make_core(), prompt, 10)
            assert tokens_of(outputs) == expected
            assert "".join(output.text for output in outputs) == ByteTokenizer().decode(expected)
        await until(lambda: is_idle(engine))
        assert engine.status().healthy
        assert engine.resident_bytes() > 0


async def test_requests_are_refused_here_at_once_and_exactly(tmp_path):
    async with running(tmp_path) as engine:
        os.kill(engine._child.pid, signal.SIGSTOP)
        with pytest.raises(ContextLengthError):
            engine.submit(request([1] * 2000))
        with pytest.raises(InvalidRequestError, match="token id 999"):
            engine.submit(request([999]))
        streams = [engine.submit(request([1], 5)) for _ in range(MAX_REQUESTS)]
        with pytest.raises(QueueFullError, match="wait"):
            engine.submit(request([1]))
        os.kill(engine._child.pid, signal.SIGCONT)
        assert [len(tokens_of(outputs)) for outputs in await asyncio.gather(*map(collect, streams))] == [5] * 32


@pytest.mark.parametrize("forget", [False, True])
async def test_a_reader_that_leaves_frees_its_blocks(tmp_path, forget):
    async with running(tmp_path) as engine:
        stream = engine.submit(request([1] * 8, 200))
        await anext(aiter(stream))
        if forget:
            del stream
        else:
            await stream.aclose()
        await until(lambda: is_idle(engine))
        assert engine.status().num_steps < 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
async def test_a_killed_or_stopped_process_ends_every_request_once_and_comes_back(tmp_path, number):
    async with running(tmp_path) as engine:
        streams = [engine.submit(request([i + 1], 240)) for i in range(12)]
        await anext(aiter(streams[0]))
        first_pid = engine._child.pid
        os.kill(first_pid, number)
        for outputs in await asyncio.gather(*map(collect, streams)):
            assert [output.finish_reason for output in outputs if output.finish_reason] == ["error"]
            assert isinstance(outputs[-1].error, EngineError)
        status = engine.status()
        assert (status.healthy, status.state) == (False, "stalled" if number == signal.SIGSTOP else "restarting")
        assert ("did nothing" if number == signal.SIGSTOP else number.name) in status.detail
        with pytest.raises(EngineRestartingError, match="the engine is "):
            engine.submit(request([1]))
        await until(lambda: engine.status().healthy)
        assert engine.status().num_restarts == 1
        assert engine._child.pid != first_pid
        await assert_serves(engine)


@pytest.mark.parametrize(("token_id", "reason"), FAILURES)
async def test_a_step_that_fails_in_whatever_way_is_survived(tmp_path, token_id, reason):
    async with running(tmp_path) as engine:
        other = engine.submit(request([1], 240))
        await anext(aiter(other))
        failing = engine.submit(request([1, token_id]))
        for stream in (failing, other):
            outputs = await collect(stream)
            assert outputs[-1].finish_reason == "error"
            assert reason in outputs[-1].error.message
        assert engine.ledger().kv_reserved_bytes == 0
        await until(lambda: engine.status().healthy)
        await assert_serves(engine)


async def test_a_long_step_is_no_stall(tmp_path):
    async with running(tmp_path) as engine:
        outputs = await collect(engine.submit(request([1, SLOW_TOKEN], 5)))
        assert outputs[-1].finish_reason == "length"
        assert engine.status().num_restarts == 0


async def test_an_idle_process_is_healthy_for_longer_than_a_silent_one(tmp_path):
    async with running(tmp_path) as engine:
        await asyncio.sleep(2 * QUICK.quiet_seconds)
        assert engine.status().num_restarts == 0
        await assert_serves(engine)


async def test_an_event_loop_that_slept_blames_nobody(tmp_path):
    async with running(tmp_path) as engine:
        stream = engine.submit(request([1, 2, 3], 20))
        time.sleep(1.2 * QUICK.quiet_seconds)
        assert tokens_of(await collect(stream)) == expected_tokens(make_core(), [1, 2, 3], 20)
        assert engine.status().num_restarts == 0


async def test_a_flood_of_requests_that_come_and_leave_is_served(tmp_path):
    async with running(tmp_path) as engine:
        for round_number in range(30):
            streams = []
            with contextlib.suppress(QueueFullError):
                while True:
                    streams.append(engine.submit(request([round_number, len(streams)], 30)))
            await asyncio.sleep(0.002)
            for stream in streams:
                await stream.aclose()
        await until(lambda: is_idle(engine))
        assert engine.status().num_restarts == 0
        await assert_serves(engine)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("refuse", PlanError, "no memory at all"),
        ("exit", EngineError, "exit code 3: the loader fell over"),
        ("abort", EngineError, "SIGABRT"),
        ("hang", EngineError, "did nothing for 1 s while it was loading"),
    ],
)
def test_a_process_that_cannot_load_says_why(tmp_path, name, error, message):
    engine = open_engine(tmp_path, name)
    with pytest.raises(error, match=message) as caught:
        engine.load()
    assert caught.value.hint == ("buy some" if name == "refuse" else None)


async def test_one_that_dies_again_and_again_stays_down_and_says_why(tmp_path, caplog):
    async with running(tmp_path, "refuse-later") as engine:
        os.kill(engine._child.pid, signal.SIGKILL)
        await until(lambda: engine.status().state == "failed")
        status = engine.status()
        assert status.detail == "gave up after 3 restarts: no memory at all (buy some)"
        assert (status.healthy, status.num_restarts) == (False, 3)
        with pytest.raises(EngineError, match="is failed: gave up"):
            engine.submit(request([1]))
    assert (tmp_path / "starts").stat().st_size == 4


async def test_health_follows_the_process(tmp_path):
    engine = open_engine(tmp_path)
    engine.load()
    service = Service(engine, scripted_model(), ServiceConfig())
    await service.start()
    try:
        assert (health.live(service)[0], health.ready(service)[0]) == (200, 200)
        os.kill(engine._child.pid, signal.SIGKILL)
        await until(lambda: not engine.status().healthy)
        assert (health.live(service)[0], health.ready(service)[1]["status"]) == (200, "restarting")
        await until(lambda: health.ready(service)[0] == 200)
        assert health.ledger(service)["measured"]["engine_process_resident_bytes"] > 1 << 20
    finally:
        await service.stop()


async def test_stopping_ends_what_runs_with_an_abort(tmp_path):
    engine = open_engine(tmp_path)
    engine.load()
    await engine.start()
    streams = [engine.submit(request([i + 1], 240)) for i in range(12)]
    await anext(aiter(streams[0]))
    await asyncio.gather(engine.stop(), engine.stop())
    for outputs in await asyncio.gather(*map(collect, streams)):
        assert [output.finish_reason for output in outputs if output.finish_reason] == ["abort"]
    assert engine.status().detail == "stopped"
    with pytest.raises(EngineError, match="isn't running"):
        engine.submit(request([1]))


async def test_stopping_does_not_wait_for_a_step_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("ullage.engine.process.STOP_SECONDS", 0.1)
    async with running(tmp_path) as engine:
        stream = engine.submit(request([1, HANG_TOKEN]))
        await asyncio.sleep(0.1)
    assert [output.finish_reason for output in await collect(stream)] == ["abort"]


async def test_stopping_while_it_starts_again_leaves_nothing(tmp_path):
    async with running(tmp_path) as engine:
        os.kill(engine._child.pid, signal.SIGKILL)
        await until(lambda: engine.status().num_restarts == 1)


def test_the_process_ends_with_the_service_however_that_ends(tmp_path):
    code = f"""
import sys, time
from pathlib import Path
sys.path[:0] = {sys.path!r}
from tests.integration.test_engine_process import open_engine
engine = open_engine(Path({str(tmp_path)!r}))
engine.load()
print(engine._child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        pid = int(service.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        service.kill()
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
