"""The official ``openai`` client, unchanged, against the real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from tests.http_server import running_server
from tests.scripted_engine import ScriptedEngine, outputs_for

from ullage.base.errors import ContextLengthError, EngineError, QueueFullError
from ullage.engine.client import GenerationRequest

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda request: outputs_for(request, ["Hel", "lo ", "鱼"]))


@pytest.fixture
async def client(engine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        running_server(engine) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_chat(client):
    completion = await client.chat.completions.create(model="tiny", messages=MESSAGES, n=3)
    assert [choice.message.content for choice in completion.choices] == ["Hello 鱼"] * 3
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 3 * 9
    assert completion._request_id.startswith("req-")


async def test_chat_streamed(client):
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello 鱼"
    assert chunks[-1].usage.completion_tokens == 9


async def test_the_clients_own_stream_accumulator(client):
    async with client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello 鱼"
    assert final.choices[0].finish_reason == "stop"


async def test_chat_logprobs(client):
    completion = await client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2)
    content = completion.choices[0].logprobs.content
    assert bytes(byte for entry in content for byte in entry.bytes).decode() == "Hello 鱼"
    assert [len(entry.top_logprobs) for entry in content] == [2] * 9


async def test_completions(client):
    completion = await client.completions.create(model="tiny", prompt=["a", "b"], n=2, logprobs=2, max_tokens=20)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert completion.choices[3].text == "Hello 鱼"
    assert completion.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4, 5, 6, 6, 6]


async def test_completions_streamed(client):
    stream = await client.completions.create(model="tiny", prompt="a", stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello 鱼"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_token_ids_by_extra_body(client):
    completion = await client.completions.create(model="tiny", prompt=[7, 8], extra_body={"return_token_ids": True})
    assert completion.choices[0].prompt_token_ids == [7, 8]
    assert completion.choices[0].token_ids == list("Hello 鱼".encode())


async def test_models(client):
    assert [model.id async for model in client.models.list()] == ["org/tiny", "tiny"]
    assert (await client.models.retrieve("org/tiny")).owned_by == "ullage"


async def test_each_error_is_the_clients_own_class(client, engine):
    async def create(**fields):
        return await client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, **fields})

    with pytest.raises(openai.NotFoundError, match="model"):
        await create(model="nope")
    with pytest.raises(openai.BadRequestError) as bad:
        await create(temperature=3)
    assert bad.value.param == "temperature"
    engine.refusals[0] = ContextLengthError("too long")
    with pytest.raises(openai.BadRequestError) as long:
        await create()
    assert long.value.code == "context_length_exceeded"
    engine.refusals[0] = QueueFullError("full", retry_after_seconds=1.0)
    with pytest.raises(openai.RateLimitError):
        await create(stream=True)
    engine.refusals[0] = EngineError("broken")
    with pytest.raises(openai.InternalServerError):
        await create()
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        await client.embeddings.create(model="tiny", input="hi")


async def test_an_error_after_the_first_byte_is_raised_while_reading(client, engine):
    def failing(request: GenerationRequest):
        yield from outputs_for(request, ["Hel", "lo"], "error")

    engine.script = lambda request: list(failing(request))
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass


async def test_what_can_never_succeed_is_not_tried_again(engine):
    engine.refusals[0] = ContextLengthError("too long")
    asked = []
    submit = engine.submit
    engine.submit = lambda request, on_end: (asked.append(request), submit(request, on_end))[1]
    async with (
        running_server(engine) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=2) as client,
    ):
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert len(asked) == 1


async def test_a_full_queue_is_tried_again_after_the_time_it_named(engine):
    engine.refusals[0] = QueueFullError("full", retry_after_seconds=0.01)

    async with (
        running_server(engine) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=2) as client,
    ):
        original = engine.submit

        def submit(request, on_end):
            try:
                return original(request, on_end)
            finally:
                engine.refusals.clear()

        engine.submit = submit
        completion = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert completion.choices[0].message.content == "Hello 鱼"
