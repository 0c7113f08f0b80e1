"""Constrained outputs through the real app and engine, on a runner that takes any token it is allowed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.http_server import app_client, events_of
from tests.integration.test_http_embedded import make_engine

MESSAGES = [{"role": "user", "content": "hi"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema_format(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES, **fields})


def content_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"]


async def test_a_schema_is_followed_plain_and_streamed():
    async with app_client(make_engine(num_blocks=512)) as client:
        fields = {"response_format": schema_format(PERSON), "max_tokens": 1500}
        plain = content_of(await ask(client, **fields))
        *chunks, done = events_of((await ask(client, stream=True, **fields)).text)
    assert json.loads(plain).keys() == {"name", "age"}
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == plain
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "regex", "regex": "[0-9]{3}"}},
        {"response_format": {"type": "grammar", "grammar": "start: /[0-9]{3}/"}},
        {"structured_outputs": {"regex": "[0-9]{3}"}},
        {"structured_outputs": {"json": {"type": "integer", "minimum": 100, "maximum": 999}}},
        {"structured_outputs": {"choice": ["123", "456"]}},
        {"guided_regex": "[0-9]{3}"},
        {"guided_json": '{"enum": [123, 456]}'},
        {"guided_choice": ["123"]},
        {"guided_grammar": "start: /[0-9]{3}/"},
        {"regex": "[0-9]{3}"},
        {"grammar": "start: /[0-9]{3}/"},
    ],
    ids=str,
)
async def test_every_field_that_constrains_is_honoured_in_both_apis(fields: dict[str, Any]):
    async with app_client(make_engine()) as client:
        chat = content_of(await ask(client, max_tokens=50, **fields))
        completion = await client.post("/v1/completions", json={"model": "tiny", "prompt": "hi", **fields})
    assert len(chat) == 3
    assert chat.isdecimal()
    assert len(completion.json()["choices"][0]["text"]) == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": schema_format({"type": "strng"})}, "response_format.json_schema.schema"),
        (
            {"response_format": schema_format({"type": "string", "pattern": "^[a-z+$"})},
            "response_format.json_schema.schema",
        ),
        ({"response_format": schema_format({"uniqueItems": True})}, "response_format.json_schema.schema"),
        ({"response_format": schema_format({"$ref": "#"})}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "regex", "regex": "("}}, "response_format.regex"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.json_schema"),
        ({"structured_outputs": {"regex": "a{1000000000}"}}, "structured_outputs.regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"lookahead": "a"}}, "structured_outputs.lookahead"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_grammar": "start: <[1]>"}, "guided_grammar"),
        ({"guided_grammar": 'start: "a" start'}, "guided_grammar"),
        ({"regex": "[a"}, "regex"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"regex": "a", "guided_regex": "a"}, "guided_regex"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"structural_tag": "{}"}, "structural_tag"),
    ],
    ids=str,
)
async def test_what_cannot_be_followed_is_refused_by_name(fields: dict[str, Any], param: str):
    async with app_client(make_engine()) as client:
        response = await ask(client, stream=True, **fields)
        after = await ask(client, max_tokens=3)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert after.status_code == 200


async def test_plain_text_asks_for_nothing():
    async with app_client(make_engine()) as client:
        plain, formatted = [await ask(client, max_tokens=9, **f) for f in ({}, {"response_format": {"type": "text"}})]
    assert plain.json()["choices"] == formatted.json()["choices"]


async def test_log_probabilities_beside_a_constraint_are_numbers():
    async with app_client(make_engine()) as client:
        response = await ask(client, regex="a", logprobs=True, top_logprobs=20, temperature=0.0001, max_tokens=5)
    entries = response.json()["choices"][0]["logprobs"]["content"]
    assert entries
    assert all(isinstance(top["logprob"], float) for entry in entries for top in (entry, *entry["top_logprobs"]))
