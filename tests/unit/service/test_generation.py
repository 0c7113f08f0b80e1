from __future__ import annotations

import asyncio

import pytest
from tests.scripted_engine import ScriptedEngine, outputs_for, scripted_model

from ullage.base.errors import EngineError, QueueFullError, ServerStoppingError
from ullage.engine.client import GenerationOutput, GenerationRequest
from ullage.engine.sampling_params import SamplingParams
from ullage.service.config import ServiceConfig
from ullage.service.generation import Generation
from ullage.service.service import Service

REQUEST = GenerationRequest((1, 2, 3), SamplingParams())


def service_of(engine: ScriptedEngine) -> Service:
    return Service(engine, scripted_model(), ServiceConfig())


async def test_outputs_of_all_choices_come_until_each_has_ended():
    engine = ScriptedEngine(lambda request: outputs_for(request, ["a", "b", "c"]))
    generation = await Generation.submit(service_of(engine), [REQUEST] * 3)
    outputs = [output async for output in generation.outputs()]
    for choice in range(3):
        assert "".join(output.text for index, output in outputs if index == choice) == "abc"
    await generation.close()
    assert engine.num_open == 0


async def test_a_refusal_leaves_no_choice_running():
    engine = ScriptedEngine()
    engine.refusals[2] = QueueFullError("full", retry_after_seconds=1.0)
    with pytest.raises(QueueFullError):
        await Generation.submit(service_of(engine), [REQUEST] * 3)
    assert len(engine.requests) == 2
    assert engine.num_open == 0


async def test_closing_before_the_first_output_aborts_all():
    engine = ScriptedEngine()
    generation = await Generation.submit(service_of(engine), [REQUEST] * 3)
    assert engine.num_open == 3
    await generation.close()
    await generation.close()
    assert engine.num_open == 0


async def test_closing_while_waiting_aborts_all():
    engine = ScriptedEngine()
    engine.pause_after = 1
    generation = await Generation.submit(service_of(engine), [REQUEST] * 2)

    async def read() -> None:
        async for _ in generation.outputs():
            pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await generation.close()
    assert engine.num_open == 0


async def test_silence_is_told():
    engine = ScriptedEngine()
    engine.pause_after = 1
    generation = await Generation.submit(service_of(engine), [REQUEST])
    outputs = generation.outputs(ping_seconds=0.001)
    first = await anext(outputs)
    assert first is not None
    assert first[1].text == "Hel"
    assert await anext(outputs) is None
    await outputs.aclose()
    await generation.close()


async def test_an_abort_of_a_stopping_server_says_so():
    engine = ScriptedEngine()
    engine.pause_after = 0
    service = service_of(engine)
    generation = await Generation.submit(service, [REQUEST])
    await service.stop()
    with pytest.raises(ServerStoppingError):
        await anext(generation.outputs())
    await generation.close()


async def test_a_cut_off_waits_for_no_engine():
    engine = ScriptedEngine()
    engine.pause_after = 1
    service = service_of(engine)
    generation = await Generation.submit(service, [REQUEST])
    outputs = generation.outputs()
    await anext(outputs)
    asyncio.get_running_loop().call_soon(service.cut_answers_off)
    with pytest.raises(ServerStoppingError):
        await anext(outputs)
    await generation.close()
    assert engine.num_open == 0


async def test_the_engines_own_error_is_raised():
    failure = EngineError("a step failed")
    last = GenerationOutput("", (), (), 3, 0, 0, finish_reason="error", error=failure)
    generation = await Generation.submit(service_of(ScriptedEngine(lambda request: [last])), [REQUEST])
    with pytest.raises(EngineError) as caught:
        await anext(generation.outputs())
    assert caught.value is failure
    await generation.close()


async def test_an_end_without_a_final_event_is_an_error():
    generation = await Generation.submit(service_of(ScriptedEngine(lambda request: [])), [REQUEST])
    with pytest.raises(EngineError, match="final event"):
        await anext(generation.outputs())
    await generation.close()
