"""Constrained outputs and tool calls of the real model, through the real server, by the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.http_server import running_server

from ullage.engine.build import EngineOptions, build_engine
from ullage.service.config import ServiceConfig
from ullage.service.served_model import ServedModel

MESSAGES = [{"role": "user", "content": "Give me a person: a name and an age."}]
BOOK = {
    "type": "function",
    "function": {
        "name": "book_room",
        "description": "Book a hotel room.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "nights": {"type": "integer", "minimum": 1, "maximum": 30},
                "guest": {
                    "type": "object",
                    "properties": {"name": {"type": "string", "maxLength": 20}},
                    "required": ["name"],
                    "additionalProperties": False,
                },
                "wishes": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 2},
            },
            "required": ["city", "nights", "guest", "wishes"],
            "additionalProperties": False,
        },
    },
}


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


@pytest.fixture
async def client(model_path) -> AsyncIterator[openai.AsyncOpenAI]:
    built = build_engine(model_path("smollm2"), EngineOptions(max_model_len=1024, kv_memory=64 << 20))
    model = ServedModel(("smollm2",), 1, built.tokenizer, built.chat_template)
    config = ServiceConfig(port=0, drain_seconds=1.0, tool_format="hermes")
    async with (
        running_server(built.engine, model, config) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_the_clients_parse_gives_an_object(client):
    completion = await client.chat.completions.parse(
        model="smollm2", messages=MESSAGES, response_format=Person, temperature=0.7, seed=1, max_tokens=200
    )
    assert completion.choices[0].finish_reason == "stop"
    assert isinstance(completion.choices[0].message.parsed, Person)


async def test_thirty_schemas_at_once_are_all_followed(client):
    async def ask(seed: int) -> str:
        completion = await client.chat.completions.create(
            model="smollm2",
            messages=MESSAGES,
            temperature=1.0,
            seed=seed,
            max_tokens=250,
            response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema()}},
        )
        assert completion.choices[0].finish_reason == "stop"
        return completion.choices[0].message.content

    texts = await asyncio.gather(*(ask(seed) for seed in range(30)))
    assert all(Person.model_validate_json(text) for text in texts)
    assert len(set(texts)) > 10


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "book_room"}}], ids=str)
async def test_a_forced_call_is_the_same_plain_and_streamed(client, choice):
    fields = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "I need 3 nights in Paris."}],
        "tools": [BOOK],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 300,
    }
    plain = (await client.chat.completions.create(**fields)).choices[0]
    async with client.chat.completions.stream(**fields) as stream:
        final = (await stream.get_final_completion()).choices[0]
    (call,), (streamed,) = plain.message.tool_calls, final.message.tool_calls
    assert call.function.name == streamed.function.name == "book_room"
    assert call.function.arguments == streamed.function.arguments
    assert json.loads(call.function.arguments).keys() == {"city", "nights", "guest", "wishes"}
    assert plain.finish_reason == final.finish_reason == "tool_calls"
    assert plain.message.content is None


async def test_a_grammar_that_leaves_one_token_has_finite_log_probabilities(client):
    completion = await client.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        temperature=0.0001,
        logprobs=True,
        top_logprobs=20,
        extra_body={"structured_outputs": {"choice": ["yes"]}},
    )
    choice = completion.choices[0]
    assert choice.message.content == "yes"
    assert choice.finish_reason == "stop"
    assert all(len(entry.top_logprobs) == 20 for entry in choice.logprobs.content)


async def test_a_broken_schema_beside_a_stream_changes_nothing_in_it(client):
    fields = {"model": "smollm2", "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    alone = (await client.chat.completions.create(**fields)).choices[0].message.content
    stream = await client.chat.completions.create(stream=True, **fields)
    pieces = []
    async for chunk in stream:
        pieces.append(chunk.choices[0].delta.content or "")
        if len(pieces) in (5, 10, 15):
            regex = ["(", "((a{100}){100}){100}", "a{1000000000}"][len(pieces) // 5 - 1]
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(**fields, extra_body={"regex": regex})
    assert "".join(pieces) == alone
