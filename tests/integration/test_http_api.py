"""Both APIs, plain and streamed, through the real app over a scripted engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.http_server import app_client, events_of
from tests.scripted_engine import ScriptedEngine, outputs_for, scripted_model

from ullage.engine.client import GenerationOutput, GenerationRequest
from ullage.service.config import ServiceConfig

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT_PROMPT = list(b"user: hi\nassistant:")


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES, **fields})


async def complete(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": "tiny", "prompt": "hi", **fields})


async def test_a_chat_answer_has_the_api_shape():
    engine = ScriptedEngine()
    async with app_client(engine) as client:
        response = await chat(client, temperature=0)
    body = response.json()
    assert response.status_code == 200
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body.pop("system_fingerprint").startswith("ullage-")
    assert body == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": len(CHAT_PROMPT),
            "completion_tokens": 5,
            "total_tokens": len(CHAT_PROMPT) + 5,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    (request,) = engine.requests
    assert list(request.prompt_token_ids) == CHAT_PROMPT
    assert request.sampling.max_tokens == engine.max_request_tokens - len(CHAT_PROMPT)
    assert engine.num_open == 0


async def test_a_completion_has_the_api_shape():
    engine = ScriptedEngine(lambda request: outputs_for(request, ["Hel", "lo"], "length"))
    async with app_client(engine) as client:
        body = (await complete(client)).json()
    assert body.pop("id").startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert body["usage"]["total_tokens"] == 2 + 5
    assert engine.requests[0].sampling.max_tokens == 16


async def test_a_default_never_asks_for_more_than_there_is_room_for():
    engine = ScriptedEngine()
    engine.max_request_tokens = 40  # a pool smaller than the context
    async with app_client(engine) as client:
        await complete(client, prompt="x" * 35)
        await chat(client)
        await chat(client, max_tokens=90)
    assert [request.sampling.max_tokens for request in engine.requests] == [5, 40 - len(CHAT_PROMPT), 90]


async def test_every_prompt_gets_n_choices_in_order():
    engine = ScriptedEngine(lambda request: outputs_for(request, ["-", bytes(request.prompt_token_ids).decode()]))
    async with app_client(engine) as client:
        body = (await complete(client, prompt=["a", [98], "cc"][::2], n=2, seed=5)).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "-a"),
        (1, "-a"),
        (2, "-cc"),
        (3, "-cc"),
    ]
    assert body["usage"]["prompt_tokens"] == 1 + 2
    assert body["usage"]["completion_tokens"] == 2 * 2 + 2 * 3
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2 + 2}
    assert [request.sampling.seed for request in engine.requests] == [5, 6, 5, 6]


async def test_a_chat_stream_has_role_text_and_end_chunks():
    async with app_client(ScriptedEngine()) as client:
        response = await chat(client, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers
    *chunks, done = events_of(response.text)
    assert done == "[DONE]"
    assert {(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "chat.completion.chunk")
    }
    assert not any("usage" in chunk for chunk in chunks)
    assert [(chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) for chunk in chunks] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Hel"}, None),
        ({"content": "lo"}, None),
        ({}, "stop"),
    ]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_usage_comes_in_one_extra_chunk_and_equals_the_plain_answers(path):
    fields = {"model": "tiny", "messages": MESSAGES} if path.startswith("chat") else {"model": "tiny", "prompt": "hi"}
    async with app_client(ScriptedEngine()) as client:
        plain = (await client.post(f"/v1/{path}", json={**fields, "n": 2})).json()
        streamed = {**fields, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, last, done = events_of((await client.post(f"/v1/{path}", json=streamed)).text)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == plain["usage"]
    assert last["id"] == chunks[0]["id"]


@pytest.mark.parametrize("stream_options", [None, {}, {"include_usage": False}])
async def test_no_usage_unless_asked_for(stream_options):
    async with app_client(ScriptedEngine()) as client:
        *chunks, _ = events_of((await chat(client, stream=True, stream_options=stream_options)).text)
    assert not any("usage" in chunk for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


async def test_a_completions_stream_joins_to_the_plain_text():
    async with app_client(ScriptedEngine()) as client:
        plain = (await complete(client, echo=True, n=2)).json()
        *chunks, _ = events_of((await complete(client, echo=True, n=2, stream=True)).text)
    for choice in plain["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"] == "hiHello"
        assert [piece["finish_reason"] for piece in own] == [None, None, None, "stop"]


async def test_token_ids_are_echoed_as_their_text():
    async with app_client(ScriptedEngine()) as client:
        body = (await complete(client, prompt=[104, 105], echo=True)).json()
    assert body["choices"][0]["text"] == "hiHello"


async def test_chat_logprobs_are_complete_plain_and_streamed():
    engine = ScriptedEngine(lambda request: outputs_for(request, ["a", "鱼"]))
    async with app_client(engine) as client:
        plain = (await chat(client, logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]
        *chunks, _ = events_of((await chat(client, logprobs=True, top_logprobs=2, stream=True)).text)
    assert [entry["token"] for entry in plain["content"]] == ["a", "bytes:\\xe9", "bytes:\\xb1", "bytes:\\xbc"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in plain["content"])
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for piece in streamed if piece for entry in piece["content"]] == plain["content"]


async def test_completion_logprobs_are_complete_plain_and_streamed():
    engine = ScriptedEngine(lambda request: outputs_for(request, ["a", "鱼b"]))
    async with app_client(engine) as client:
        plain = (await complete(client, logprobs=1)).json()["choices"][0]["logprobs"]
        *chunks, _ = events_of((await complete(client, logprobs=1, stream=True)).text)
    assert plain["tokens"] == ["a", "bytes:\\xe9", "bytes:\\xb1", "bytes:\\xbc", "b"]
    assert plain["text_offset"] == [0, 1, 1, 1, 2]
    assert plain["token_logprobs"] == [-0.5] * 5
    assert plain["top_logprobs"][0] == {"a": -0.5}
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert {key: [item for piece in streamed if piece for item in piece[key]] for key in plain} == plain


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_token_ids_come_when_asked_for_and_none_is_lost(path):
    """Text that is held back must not hold back the token ids."""

    def held_back(request: GenerationRequest) -> list[GenerationOutput]:
        first, last = outputs_for(request, ["Hel", "lo"])
        return [replace(first, text=""), last]

    fields = {"model": "tiny", "messages": MESSAGES} if path.startswith("chat") else {"model": "tiny", "prompt": "hi"}
    prompt = CHAT_PROMPT if path.startswith("chat") else [104, 105]
    async with app_client(ScriptedEngine(held_back)) as client:
        plain = (await client.post(f"/v1/{path}", json={**fields, "return_token_ids": True})).json()
        streamed = {**fields, "return_token_ids": True, "stream": True}
        *chunks, _ = events_of((await client.post(f"/v1/{path}", json=streamed)).text)
    choice = plain["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (prompt, list(b"Hello"))
    pieces = [chunk["choices"][0] for chunk in chunks]
    assert pieces[0]["prompt_token_ids"] == prompt
    assert not any("prompt_token_ids" in piece for piece in pieces[1:])
    assert [token_id for piece in pieces for token_id in piece.get("token_ids", [])] == list(b"Hello")
    if path.startswith("chat"):
        assert plain["prompt_token_ids"] == chunks[0]["prompt_token_ids"] == prompt


async def test_text_that_is_held_back_sends_no_empty_chunk():
    engine = ScriptedEngine(lambda request: outputs_for(request, ["a", "", "", "b"]))
    async with app_client(engine) as client:
        *chunks, _ = events_of((await chat(client, stream=True)).text)
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "a", "b", None]


async def test_an_answer_without_any_text_is_still_whole():
    engine = ScriptedEngine(lambda request: outputs_for(request, [""]))
    async with app_client(engine) as client:
        *chunks, done = events_of((await chat(client, stream=True)).text)
        plain = (await chat(client)).json()
    assert done == "[DONE]"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]
    assert plain["choices"][0]["message"]["content"] == ""


async def test_the_salt_goes_to_the_engine():
    engine = ScriptedEngine()
    async with app_client(engine) as client:
        await chat(client, cache_salt="tenant")
        await chat(client)
    assert [request.cache_salt for request in engine.requests] == ["tenant", ""]


async def test_the_generation_prompt_can_be_left_out():
    engine = ScriptedEngine()
    async with app_client(engine) as client:
        await chat(client, add_generation_prompt=False)
    assert bytes(engine.requests[0].prompt_token_ids) == b"user: hi\n"


async def test_fields_without_effect_are_reported():
    async with app_client(ScriptedEngine()) as client:
        plain = await chat(client, fooo=1, reasoning_effort="low", user="me", store=False, tools=[])
        stream = await chat(client, fooo=1, stream=True)
        nothing = await chat(client, user="me")
    assert plain.headers["x-ullage-ignored-fields"] == "fooo, reasoning_effort"
    assert stream.headers["x-ullage-ignored-fields"] == "fooo"
    assert "x-ullage-ignored-fields" not in nothing.headers


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/health"])
async def test_probes_may_ask_for_the_header_only(method, path):
    async with app_client(ScriptedEngine()) as client:
        assert (await client.request(method, path)).status_code == 200


async def test_models_are_listed_and_shown_by_every_name():
    async with app_client(ScriptedEngine()) as client:
        listed = (await client.get("/v1/models")).json()
        shown = await client.get("/v1/models/org%2Ftiny")
        plain = await client.get("/v1/models/org/tiny")
        unknown = await client.get("/v1/models/org/other")
    assert [card["id"] for card in listed["data"]] == ["org/tiny", "tiny"]
    assert shown.json() == plain.json() == listed["data"][0]
    assert listed["data"][0] == {
        "id": "org/tiny",
        "object": "model",
        "created": 1234567890,
        "owned_by": "ullage",
        "max_model_len": 100,
    }
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"


async def test_a_base_model_can_not_chat_and_says_what_it_can():
    async with app_client(ScriptedEngine(), scripted_model(chat=False)) as client:
        response = await chat(client)
        assert (await complete(client)).status_code == 200
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


async def test_health_follows_the_engine():
    engine = ScriptedEngine()
    async with app_client(engine, config=ServiceConfig(stall_seconds=5.0)) as client:

        async def statuses() -> tuple[int, int]:
            return tuple([(await client.get(f"/health/{kind}")).status_code for kind in ("live", "ready")])

        assert await statuses() == (200, 200)
        engine.seconds_quiet = 60.0
        assert await statuses() == (200, 200)  # idle is healthy
        engine.num_stuck = 1
        assert await statuses() == (503, 503)
        engine.num_stuck = 0
        engine.healthy = False
        assert await statuses() == (503, 503)
        assert (await client.get("/health/ready")).json() == {"status": "failed", "reason": "as scripted"}


async def test_the_ledger_is_shown_in_bytes():
    async with app_client(ScriptedEngine()) as client:
        body = (await client.get("/v1/ledger")).json()
    assert body["accounts"]["kv_pool"] == {"planned_bytes": 100, "allocated_bytes": 0}
    assert body["kv_pool"] == {"reserved_bytes": 0, "used_bytes": 0, "cached_bytes": 0}
    assert body["measured"]["resident_bytes"] > 1 << 20
