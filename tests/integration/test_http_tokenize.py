"""Tokens asked for on their own, through the real app."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.http_server import app_client
from tests.scripted_engine import EOS, ScriptedEngine, scripted_model

from ullage.service.config import ServiceConfig

MESSAGES = [{"role": "user", "content": "hi"}]


async def tokenize(client: httpx.AsyncClient, **fields: Any) -> Any:
    return (await client.post("/tokenize", json=fields)).json()


async def test_a_text_and_its_tokens():
    async with app_client(ScriptedEngine()) as client:
        plain = await tokenize(client, model="tiny", prompt="hé")
        named = await tokenize(client, prompt="hé", return_token_strs=True)
    assert plain == {"count": 3, "max_model_len": 100, "tokens": list("hé".encode())}
    assert named == {**plain, "token_strs": ["h", "bytes:\\xc3", "bytes:\\xa9"]}


@pytest.mark.parametrize("text", ["", "hi", " two  spaces ", "<eos>", "日本 🙂\n\r\t"])
async def test_tokens_become_the_text_again(text):
    async with app_client(ScriptedEngine()) as client:
        tokens = (await tokenize(client, prompt=text))["tokens"]
        response = await client.post("/detokenize", json={"model": "tiny", "tokens": tokens})
    assert response.json() == {"prompt": text}


async def test_control_tokens_are_written_out():
    async with app_client(ScriptedEngine()) as client:
        response = await client.post("/detokenize", json={"tokens": [104, EOS, 105]})
    assert response.json() == {"prompt": "h<eos>i"}


async def test_a_chat_is_the_prompt_that_a_completion_would_have():
    tools = [{"type": "function", "function": {"name": "f"}}]
    engine = ScriptedEngine()
    async with app_client(engine) as client:
        for fields in ({}, {"add_generation_prompt": False}, {"tools": tools}, {"tools": tools, "tool_choice": "none"}):
            tokens = (await tokenize(client, messages=MESSAGES, **fields))["tokens"]
            await client.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES, **fields})
            assert tuple(tokens) == engine.requests[-1].prompt_token_ids


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "x" * 1000}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "wizard", "content": ""}]}, 400, "messages[0].role"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {"prompt": "hi", "model": "nope"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": ["1"]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [EOS + 1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [1] * 101}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "nope"}, 404, "model"),
    ],
)
async def test_what_is_wrong_is_named(path, fields, status, param):
    async with app_client(ScriptedEngine()) as client:
        response = await client.post(path, json=fields)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


async def test_fields_without_effect_are_told():
    async with app_client(ScriptedEngine()) as client:
        response = await client.post("/tokenize", json={"prompt": "hi", "fooo": 1})
    assert response.headers["x-ullage-ignored-fields"] == "fooo"


async def test_a_base_model_has_no_chat_to_tokenize():
    async with app_client(ScriptedEngine(), scripted_model(chat=False)) as client:
        response = await client.post("/tokenize", json={"messages": MESSAGES})
    assert response.status_code == 400


async def test_the_body_limit_holds_here_too():
    async with app_client(ScriptedEngine(), config=ServiceConfig(max_body_bytes=100)) as client:
        response = await client.post("/tokenize", json={"prompt": "x" * 100})
    assert response.status_code == 413
