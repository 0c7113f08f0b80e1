"""Constrained requests at the door of a whole engine: compiled on a thread of their own, refused or let in."""

from __future__ import annotations

import threading

import pytest
from tests.http_server import until
from tests.integration.test_http_embedded import make_engine

from ullage.base.errors import InvalidRequestError
from ullage.engine.client import GenerationOutput, GenerationRequest
from ullage.engine.constraint import Constraint
from ullage.engine.embedded import EmbeddedEngine
from ullage.engine.sampling_params import SamplingParams


def request(pattern: str, max_tokens: int = 20) -> GenerationRequest:
    return GenerationRequest((1, 2, 3), SamplingParams(max_tokens=max_tokens, constraint=Constraint("regex", pattern)))


async def outputs_of(engine: EmbeddedEngine, wanted: GenerationRequest) -> list[GenerationOutput]:
    return [output async for output in engine.submit(wanted)]


@pytest.fixture
async def engine():
    engine = make_engine()
    await engine.start()
    yield engine
    await engine.stop()


async def test_an_output_matches(engine: EmbeddedEngine):
    outputs = await outputs_of(engine, request("[0-9]{5}"))
    text = "".join(output.text for output in outputs)
    assert text.isdecimal()
    assert len(text) == 5
    assert outputs[-1].finish_reason == "stop"


async def test_what_cannot_be_compiled_is_the_requests_own_error(engine: EmbeddedEngine):
    (refused,) = await outputs_of(engine, request("("))
    assert refused.finish_reason == "error"
    assert isinstance(refused.error, InvalidRequestError)
    assert (await outputs_of(engine, request("a")))[-1].finish_reason == "stop"
    assert engine.status().num_running == 0


async def test_a_reader_that_does_not_wait_for_the_compiler_leaves_nothing_behind(engine: EmbeddedEngine):
    compiler_is_free = threading.Event()
    engine._engine_loop._compiling._thread.submit(compiler_is_free.wait)
    left = engine.submit(request("a+"))
    await left.aclose()
    stays = engine.submit(request("a"))
    compiler_is_free.set()
    assert [output async for output in stays][-1].finish_reason == "stop"
    await until(lambda: not len(engine._accepted))
    assert engine._core.scheduler.counters.num_generated_tokens == 2
    assert len(engine._core.constraints) == 0


async def test_other_requests_go_on_while_one_compiles(engine: EmbeddedEngine):
    compiler_is_free = threading.Event()
    engine._engine_loop._compiling._thread.submit(compiler_is_free.wait)
    waits = engine.submit(request("a"))
    free = await outputs_of(engine, GenerationRequest((1, 2, 3), SamplingParams(max_tokens=5)))
    assert free[-1].finish_reason == "length"
    compiler_is_free.set()
    assert [output async for output in waits][-1].finish_reason == "stop"


async def test_a_stop_ends_requests_that_still_compile():
    engine = make_engine()
    await engine.start()
    compiler_is_free = threading.Event()
    engine._engine_loop._compiling._thread.submit(compiler_is_free.wait)
    stream = engine.submit(request("a"))
    await engine.stop()
    compiler_is_free.set()
    assert [output.finish_reason async for output in stream] == ["abort"]
