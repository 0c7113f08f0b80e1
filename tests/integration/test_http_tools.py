"""Tools and tool calls through the real app, on scripted outputs and on a runner that takes what it is allowed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from tests.http_server import app_client, events_of
from tests.integration.test_http_embedded import make_engine
from tests.scripted_engine import LineTemplate, ScriptedEngine, outputs_for, scripted_model

from ullage.engine.client import FinishReason
from ullage.service.config import ServiceConfig

MESSAGES = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 3}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
ARGUMENTS = '{"city": "Zürich \\"W\\" 🌦", "days": 3}'
ANSWER = (
    f'Let me see.\n<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)


def function(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def says(pieces: Sequence[str], finish_reason: FinishReason = "stop") -> ScriptedEngine:
    return ScriptedEngine(lambda request: outputs_for(request, pieces, finish_reason))


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": MESSAGES, "tools": [WEATHER, TIME], **fields}
    return await client.post("/v1/chat/completions", json=body)


def assembled(text: str) -> tuple[str, list[dict[str, Any]], str]:
    """(content, calls, finish reason) of a stream."""
    *chunks, done = events_of(text)
    assert done == "[DONE]"
    content, calls, reason = "", [], ""
    for chunk in chunks:
        choice = chunk["choices"][0]
        content += choice["delta"].get("content", "")
        reason = choice["finish_reason"] or reason
        for delta in choice["delta"].get("tool_calls", []):
            if delta["index"] == len(calls):
                assert delta.keys() == {"index", "id", "type", "function"}
                assert delta["type"] == "function"
                calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
            else:
                assert delta.keys() == {"index", "function"}
                assert delta["function"].keys() == {"arguments"}
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    return content, calls, reason


async def test_calls_are_read_back():
    engine = says([ANSWER])
    async with app_client(engine) as client:
        choice = (await ask(client)).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    weather, time = choice["message"]["tool_calls"]
    assert weather["id"] != time["id"]
    assert weather["function"] == {"name": "weather", "arguments": ARGUMENTS}
    assert time["function"] == {"name": "time", "arguments": "{}"}
    assert engine.requests[0].sampling.constraint is None
    assert bytes(engine.requests[0].prompt_token_ids).startswith(b"tool weather\ntool time\n")


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_a_stream_of_calls_comes_to_the_same_however_it_is_cut(size: int):
    async with app_client(says([ANSWER[i : i + size] for i in range(0, len(ANSWER), size)])) as client:
        content, calls, reason = assembled((await ask(client, stream=True)).text)
    assert content == "Let me see."
    assert [(call["name"], call["arguments"]) for call in calls] == [("weather", ARGUMENTS), ("time", "{}")]
    assert len({call["id"] for call in calls}) == 2
    assert reason == "tool_calls"


async def test_a_call_cut_by_length_says_so():
    cut = ANSWER[: ANSWER.index("days")]
    async with app_client(says([cut], "length")) as client:
        content, calls, reason = assembled((await ask(client, stream=True)).text)
    assert (content, reason) == ("Let me see.", "length")
    assert ARGUMENTS.startswith(calls[0]["arguments"])


async def test_only_the_first_call_is_kept_where_calls_are_not_parallel():
    async with app_client(says([ANSWER])) as client:
        choice = (await ask(client, parallel_tool_calls=False)).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]


async def test_without_tools_or_with_choice_none_markup_is_text():
    engine = says([ANSWER])
    async with app_client(engine) as client:
        none = (await ask(client, tool_choice="none")).json()["choices"][0]
        no_tools = (await ask(client, tools=[])).json()["choices"][0]
    for choice in (none, no_tools):
        assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
        assert choice["finish_reason"] == "stop"
    assert not bytes(engine.requests[0].prompt_token_ids).startswith(b"tool")


async def test_an_answer_without_calls_is_an_answer():
    async with app_client(says(["Hel", "lo"])) as client:
        choice = (await ask(client)).json()["choices"][0]
        content, calls, reason = assembled((await ask(client, stream=True, logprobs=True)).text)
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert (content, calls, reason) == ("Hello", [], "stop")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str)
async def test_a_call_can_be_forced(choice: object):
    async with app_client(make_engine(eos_probability=0.5, num_blocks=512)) as client:
        fields = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 1500, "messages": [MESSAGES[0]]}
        plain = (await ask(client, **fields)).json()["choices"][0]
        content, calls, reason = assembled((await ask(client, stream=True, **fields)).text)
    (call,) = plain["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]).keys() == {"city", "days"}
    assert plain["message"]["content"] is None
    assert plain["finish_reason"] == reason == "tool_calls"
    assert content == ""
    assert [call["arguments"] for call in calls] == [call["function"]["arguments"]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "tools"),
        ({"functions": [WEATHER["function"]]}, "functions"),
        ({"function_call": {"name": "weather"}}, "function_call"),
        (
            {
                "tool_choice": "required",
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "x"}}}}}
                ],
            },
            "tools[0].function.parameters",
        ),
        (
            {"tools": [function("f", {"type": "string"})]},
            "tools[0].function.parameters",
        ),
    ],
    ids=str,
)
async def test_tools_that_cannot_be_honoured_are_refused_by_name(fields: dict[str, Any], param: str):
    async with app_client(says(["x"])) as client:
        response = await ask(client, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


async def test_a_template_without_tools_refuses_them_unless_the_form_is_set():
    engine = says([ANSWER])
    call = {"id": "c", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    history = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "12:00"},
    ]
    model = scripted_model(template=LineTemplate(takes_tools=False, source=""))
    async with app_client(engine, model=model) as client:
        refused = await ask(client)
        none = await ask(client, tool_choice="none")
    engine.max_model_len = engine.max_request_tokens = 1000
    async with app_client(engine, model, ServiceConfig(tool_format="hermes")) as client:
        told = await ask(client, messages=history)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools"
    assert none.status_code == 200
    assert told.json()["choices"][0]["finish_reason"] == "tool_calls"
    prompt = bytes(engine.requests[-1].prompt_token_ids).decode()
    assert prompt.startswith("system: You can call these functions:")
    assert 'assistant: <tool_call>{"name": "time", "arguments": {}}</tool_call>' in prompt
    assert "user: Result of the call: 12:00" in prompt
