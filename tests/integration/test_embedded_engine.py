"""The embedded engine on a runner that proves the blocks right: streams, leaving, failing, stopping."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.engine_requests import collect, request, tokens_of, until
from tests.fake_engine import expected_tokens, make_core
from tests.scripted_engine import ByteTokenizer

from ullage.base.errors import ContextLengthError, DeadlineError, EngineError, KVCapacityError, QueueFullError
from ullage.engine import embedded
from ullage.engine.client import GenerationOutput, GenerationRequest, OutputStream
from ullage.engine.core import EngineCore
from ullage.engine.embedded import EmbeddedEngine
from ullage.engine.fake_runner import FakeRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import SampledToken, ScheduledStep

DEADLINE_SECONDS = 20


class GatedRunner(FakeRunner):
    """A step runs when the test lets it."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.steps_allowed = threading.Semaphore(0)

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        assert self.steps_allowed.acquire(timeout=DEADLINE_SECONDS)
        return super().execute(step)

    def allow(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.steps_allowed.release()


class FailingRunner(FakeRunner):
    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        if self.num_steps == 3:
            raise ZeroDivisionError("the device fell off")
        return super().execute(step)


@asynccontextmanager
async def running(core: EngineCore) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(core, ByteTokenizer())
    await engine.start()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield engine
    finally:
        if isinstance(core.runner, GatedRunner):
            core.runner.allow(1000)
        await engine.stop()
    assert not engine._thread.is_alive()
    assert core.runner.closed


def is_idle(engine: EmbeddedEngine) -> bool:
    return engine.status().detail == "idle" and engine.ledger().kv_reserved_bytes == 0


async def test_a_stream_gives_the_expected_tokens_and_one_last_output():
    core = make_core()
    async with running(core) as engine:
        outputs = await collect(engine.submit(request([1, 2, 3])))
    assert tokens_of(outputs) == expected_tokens(core, [1, 2, 3], 10)
    assert "".join(output.text for output in outputs) == ByteTokenizer().decode(tokens_of(outputs))
    assert [output.finish_reason for output in outputs if output.finish_reason] == ["length"]
    assert outputs[-1].finish_reason == "length"


async def test_fifty_requests_at_once_each_get_their_own_tokens():
    core = make_core(num_blocks=12, max_waiting_requests=100)
    prompts = [[i % 7] * (1 + i % 20) + [i] for i in range(50)]
    async with running(core) as engine:
        streams = [engine.submit(request(prompt)) for prompt in prompts]
        for prompt, outputs in zip(prompts, await asyncio.gather(*map(collect, streams)), strict=True):
            assert tokens_of(outputs) == expected_tokens(core, prompt, 10)
        await until(lambda: is_idle(engine))
        core.check_integrity()


async def leave_by_aclose(stream: OutputStream) -> None:
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(aiter(stream))


async def leave_by_cancellation(stream: OutputStream) -> None:
    reading = asyncio.ensure_future(collect(stream))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def leave_by_forgetting(stream: OutputStream) -> None:
    del stream


@pytest.mark.parametrize("leave", [leave_by_aclose, leave_by_cancellation, leave_by_forgetting])
@pytest.mark.parametrize("num_steps_before", [0, 2])
async def test_leaving_frees_the_blocks_within_one_step(leave, num_steps_before):
    core = make_core(runner_class=GatedRunner)
    async with running(core) as engine:
        stream = engine.submit(request([1] * 8, 40))
        core.runner.allow(num_steps_before)
        await until(lambda: core.runner.num_steps == num_steps_before and bool(core.scheduler.running))
        kept = [stream] if leave is not leave_by_forgetting else []
        leaving, stream = leave(stream), None
        await leaving
        core.runner.allow(1)  # the step that it is in
        await until(lambda: is_idle(engine))
        assert core.runner.num_steps <= num_steps_before + 1  # none, where the command came before the step began
        del kept


async def test_the_last_output_is_told_once_however_a_request_ends():
    core = make_core(runner_class=GatedRunner)
    told: dict[str, list[GenerationOutput]] = {"read": [], "left": [], "stopped": []}
    async with running(core) as engine:
        read = engine.submit(request([1, 2], max_tokens=3), told["read"].append)
        left = engine.submit(request([3, 4], max_tokens=50), told["left"].append)
        core.runner.allow(3)
        outputs = await collect(read)
        await left.aclose()
        await left.aclose()
        core.runner.allow(1)
        await until(lambda: told["left"])
        stopped = engine.submit(request([5, 6], max_tokens=50), told["stopped"].append)
        core.runner.allow(1000)
        await engine.stop()
        assert (await collect(stopped))[-1].finish_reason == "abort"
    assert told["read"][0].num_output_tokens == outputs[-1].num_output_tokens == 3
    assert [last.finish_reason for lasts in told.values() for last in lasts] == ["length", "abort", "abort"]
    num_generated = sum(last.num_output_tokens for lasts in told.values() for last in lasts)
    assert num_generated == core.status().num_generated_tokens


async def test_a_reader_still_waiting_when_another_task_leaves_gets_the_end():
    core = make_core(runner_class=GatedRunner)
    async with running(core) as engine:
        stream = engine.submit(request([1], 40))
        reading = asyncio.ensure_future(anext(aiter(stream)))
        await asyncio.sleep(0)
        await stream.aclose()
        core.runner.allow(1)
        assert (await reading).finish_reason == "abort"


async def test_leaving_one_does_not_disturb_another():
    core = make_core()
    async with running(core) as engine:
        left, stays = engine.submit(request([1] * 8, 40)), engine.submit(request([1] * 8, 40))
        await anext(aiter(left))
        await left.aclose()
        assert tokens_of(await collect(stays)) == expected_tokens(core, [1] * 8, 40)


async def test_requests_that_can_never_be_served_are_refused_at_once():
    async with running(make_core(max_model_len=50, num_blocks=8, block_size=4)) as engine:
        with pytest.raises(ContextLengthError):
            engine.submit(request([1] * 45))
        with pytest.raises(KVCapacityError):
            engine.submit(request([1] * 30))
        assert engine.status().num_waiting == 0


async def test_the_queue_is_full_exactly_when_it_is_full():
    core = make_core(runner_class=GatedRunner, max_num_seqs=2, max_waiting_requests=3)
    async with running(core) as engine:
        streams = [engine.submit(request([1], 2)) for _ in range(5)]
        with pytest.raises(QueueFullError, match="3 requests are waiting, and 3 may") as caught:
            engine.submit(request([1], 2))
        assert caught.value.retry_after_seconds > 0
        await streams.pop().aclose()
        with pytest.raises(QueueFullError):  # it is still in the engine's hands
            engine.submit(request([1], 2))
        core.runner.allow(1)
        await until(lambda: core.scheduler.counters.num_steps == 1)
        await until(lambda: len(engine._accepted) == 4)
        streams.append(engine.submit(request([1], 2)))
        core.runner.allow(100)
        assert [len(tokens_of(outputs)) for outputs in await asyncio.gather(*map(collect, streams))] == [2] * 5


class CountedPrompt(tuple[int, ...]):
    num_scans = 0

    def __iter__(self):
        CountedPrompt.num_scans += 1
        return super().__iter__()


async def test_a_prompt_is_checked_once_and_copied_once():
    async with running(make_core()) as engine:
        await collect(engine.submit(GenerationRequest(CountedPrompt((1, 2, 3)), SamplingParams(max_tokens=2))))
    assert CountedPrompt.num_scans <= 4  # types, the least, the greatest; and the copy


async def test_a_slow_reader_finds_everything_in_one_output():
    core = make_core()
    async with running(core) as engine:
        stream = engine.submit(request([1, 2], 30))
        await until(lambda: is_idle(engine))
        (output,) = await collect(stream)
    assert list(output.token_ids) == expected_tokens(core, [1, 2], 30)
    assert (output.num_output_tokens, output.finish_reason) == (30, "length")


async def test_a_failing_step_ends_every_request_with_an_error(caplog):
    core = make_core(runner_class=FailingRunner, max_num_seqs=2)
    async with running(core) as engine:
        streams = [engine.submit(request([i + 1], 20)) for i in range(4)]
        for i, outputs in enumerate(await asyncio.gather(*map(collect, streams))):
            assert [output.finish_reason for output in outputs if output.finish_reason] == ["error"]
            assert isinstance(outputs[-1].error, EngineError)
            assert "the device fell off" in outputs[-1].error.message
            assert tokens_of(outputs) == expected_tokens(core, [i + 1], 20)[: outputs[-1].num_output_tokens]
        status = engine.status()
        assert not status.healthy
        assert "the device fell off" in status.detail
        with pytest.raises(EngineError, match="the device fell off"):
            engine.submit(request([1]))
    assert "the engine failed" in caplog.text


async def test_stopping_ends_what_runs_and_what_waits_with_an_abort():
    core = make_core(runner_class=GatedRunner, max_num_seqs=2)
    engine = EmbeddedEngine(core, ByteTokenizer())
    await engine.start()
    core.runner.allow(3)
    readers = [asyncio.ensure_future(collect(engine.submit(request([i + 1], 40)))) for i in range(4)]
    await until(lambda: core.scheduler.counters.num_steps == 3)
    late = engine.submit(request([9], 40))
    stopping = [asyncio.ensure_future(engine.stop()) for _ in range(2)]
    await asyncio.sleep(0)
    core.runner.allow(1000)
    await asyncio.gather(*stopping)
    for outputs in [*await asyncio.gather(*readers), await collect(late)]:
        assert [output.finish_reason for output in outputs if output.finish_reason] == ["abort"]
    assert core.runner.closed
    assert engine.ledger().kv_reserved_bytes == 0
    assert engine.status().detail == "stopped"
    with pytest.raises(EngineError, match="isn't running"):
        engine.submit(request([1]))


class HungRunner(FakeRunner):
    released = threading.Event()

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        assert self.released.wait(timeout=DEADLINE_SECONDS)
        return super().execute(step)


async def test_stopping_leaves_a_step_behind_that_hangs(monkeypatch, caplog):
    monkeypatch.setattr(embedded, "STOP_SECONDS", 0.05)
    core = make_core(runner_class=HungRunner)
    engine = EmbeddedEngine(core, ByteTokenizer())
    await engine.start()
    stream = engine.submit(request([1], 40))
    await until(lambda: bool(core.scheduler.running))
    async with asyncio.timeout(DEADLINE_SECONDS / 2):
        await engine.stop()
    assert "a step hangs" in caplog.text
    assert not core.runner.closed
    HungRunner.released.set()  # what it may say now comes too late
    await asyncio.to_thread(engine._thread.join, DEADLINE_SECONDS)
    await asyncio.sleep(0)
    assert [output.finish_reason for output in await collect(stream)] == ["abort"]
    await engine.stop()
    assert core.runner.closed


async def test_a_refused_client_is_told_to_wait_as_long_as_ends_took_lately():
    seconds = iter(range(0, 100_000, 3))
    core = make_core(max_num_seqs=1, max_waiting_requests=1, max_model_len=100_000, num_blocks=30_000)
    async with running(core) as engine:
        assert engine.max_requests == 2
        core.clock = lambda: next(seconds)
        streams = [engine.submit(request([1], 90_000)) for _ in range(2)]
        with pytest.raises(QueueFullError) as caught:
            engine.submit(request([1], 2))
        assert caught.value.retry_after_seconds == 6.0  # nothing ended since the first came
        for stream in streams:
            await stream.aclose()


async def test_a_refused_client_is_told_the_numbers():
    core = make_core(runner_class=GatedRunner, max_num_seqs=1, max_waiting_requests=1, num_blocks=20)
    async with running(core) as engine:
        kept = [engine.submit(request([1] * 6, 3)) for _ in range(2)]
        await until(lambda: core.scheduler.kv_cache.pool.num_free == 18)
        with pytest.raises(QueueFullError) as caught:
            engine.submit(request([1] * 6, 30))
        details = caught.value.details
        assert details["bound"] == "max_waiting_requests"
        assert (details["blocks_needed"], details["blocks_free"], details["blocks_total"]) == (9, 18, 20)
        assert (details["requests_in_work"], details["max_waiting_requests"]) == (2, 1)
        assert engine.status().num_refusals == {"max_waiting_requests": 1}
        del kept


async def test_a_request_that_took_too_long_ends_with_one_error_whether_it_ran_or_waited():
    core = make_core(runner_class=GatedRunner, max_num_seqs=1)
    now = 100.0
    core.clock = core.scheduler._clock = lambda: now
    async with running(core) as engine:
        streams = [
            engine.submit(replace(request([i + 1], 40), timeout_seconds=timeout))
            for i, timeout in enumerate([5.0, 5.0, 90.0])
        ]
        core.runner.allow(3)
        await until(lambda: core.scheduler.counters.num_steps == 3)
        now = 106.0
        core.runner.allow(50)
        runs, waits, stays = await asyncio.gather(*map(collect, streams))
        assert tokens_of(stays) == expected_tokens(core, [3], 40)
        assert tokens_of(runs) == expected_tokens(core, [1], 40)[:4]
        for outputs, words in ((runs, "it was running"), (waits, "it never left the queue")):
            assert [output.finish_reason for output in outputs if output.finish_reason] == ["error"]
            assert isinstance(outputs[-1].error, DeadlineError)
            assert words in outputs[-1].error.message
            assert outputs[-1].times.finished_at == 106.0
        assert engine.status().num_aborts == {"deadline": 2}


async def test_a_second_reader_at_the_same_time_is_an_error_and_the_first_goes_on():
    core = make_core(runner_class=GatedRunner)
    async with running(core) as engine:
        stream = engine.submit(request([1], 3))
        first = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one reader"):
            await anext(stream)
        core.runner.allow(3)
        assert len(tokens_of(await first)) == 3


async def test_stopping_releases_the_text_held_back():
    core = make_core(runner_class=GatedRunner)
    text = ByteTokenizer().decode(expected_tokens(core, [1], 20))
    engine = EmbeddedEngine(core, ByteTokenizer())
    await engine.start()
    stream = engine.submit(request([1], 40, stop=(text + "more",)))
    core.runner.allow(5)
    await until(lambda: core.scheduler.counters.num_steps == 5)
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    core.runner.allow(1)  # the step that it may be in
    await stopping
    outputs = await collect(stream)
    assert "".join(output.text for output in outputs) == text[: outputs[-1].num_output_tokens]
    assert outputs[-1].num_output_tokens >= 5


async def test_an_engine_that_never_started_can_be_stopped():
    engine = EmbeddedEngine(make_core(), None)
    with pytest.raises(EngineError, match="isn't running"):
        engine.submit(request([1]))
    assert engine.status().detail == "not started"
    await engine.stop()
    with pytest.raises(EngineError, match="was stopped"):
        await engine.start()


async def test_an_idle_engine_waits_without_stepping_and_says_so():
    core = make_core()
    async with running(core) as engine:
        await collect(engine.submit(request([1], 3)))
        await until(lambda: is_idle(engine))
        num_steps, cpu_seconds = engine.status().num_steps, time.process_time()
        await asyncio.sleep(0.1)
        status, cpu_seconds = engine.status(), time.process_time() - cpu_seconds
    assert (status.healthy, status.num_steps, status.num_running, status.num_waiting) == (True, num_steps, 0, 0)
    assert num_steps == 3
    assert status.seconds_since_step >= 0.1
    assert cpu_seconds < 0.05


async def test_one_call_to_the_event_loop_for_each_step(monkeypatch):
    core = make_core()
    async with running(core) as engine:
        calls = []
        post = engine._loop.call_soon_threadsafe
        monkeypatch.setattr(engine._loop, "call_soon_threadsafe", lambda *args: (calls.append(args), post(*args)))
        await asyncio.gather(*(collect(engine.submit(request([i], 10))) for i in range(4)))
        assert len(calls) == engine.status().num_steps
        monkeypatch.undo()
