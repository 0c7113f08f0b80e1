"""Broken bodies over a real socket: none is the server's mistake, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.fuzz.bodies import MAX_REPLY_BYTES, Sent, fault_of, throw_bodies
from tests.http_server import RunningServer, events_of, running_server
from tests.integration.test_http_embedded import make_engine
from tests.scripted_engine import ScriptedEngine

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
LONG = b" " * (MAX_REPLY_BYTES + 1)
JSON = {"content-type": "application/json"}


@asynccontextmanager
async def server_and_client() -> AsyncIterator[tuple[RunningServer, httpx.AsyncClient]]:
    async with running_server(ScriptedEngine()) as server, httpx.AsyncClient(base_url=server.url) as client:
        yield server, client


def error_of(response: httpx.Response) -> Any:
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) < MAX_REPLY_BYTES
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    return error


@pytest.mark.parametrize("seed", [1, 2])
async def test_hundreds_of_broken_bodies_find_nothing(seed):
    async with server_and_client() as (server, _):
        report = await throw_bodies(server.url, "tiny", seed, num_bodies=300)
    assert report.findings == []
    assert report.num_sent.total() == 302
    assert report.num_answers[413] == 2
    assert len(report.num_sent) > 12


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", "no answer"),
        (b"HTTP/1.1 500 X\r\n\r\n", "a server's mistake"),
        (b"HTTP/1.1 400 X\r\ncontent-type: application/json\r\n\r\n{}", "no request id"),
        (b"HTTP/1.1 400 X\r\nx-request-id: a\r\n\r\n{}", "wrong content type"),
        (b"HTTP/1.1 400 X\r\nx-request-id: a\r\ncontent-type: application/json\r\n\r\n{}", "not the API's shape"),
        (b"HTTP/1.1 400 X\r\nx-request-id: a\r\ncontent-type: application/json\r\n\r\nc4n4ry", "the input comes back"),
        (
            b"HTTP/1.1 400 X\r\nx-request-id: a\r\ncontent-type: application/json\r\n\r\n" + b" " * 65537,
            "a long answer",
        ),
        (b"HTTP/1.1 200 X\r\nx-request-id: a\r\ncontent-type: text/html\r\n\r\n", "wrong content type"),
    ],
)
def test_each_fault_of_an_answer_is_seen(raw, fault):
    assert fault_of(Sent("kind", "/", b"", b""), raw)[1] == fault


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{:", b'{"model": "tiny", ', b"[]", b'"text"', b"[" * 100_000, b"\xff\xfe"),
        *(b'{"model":"tiny","prompt":"\\ud800"}', b'\xef\xbb\xbf{"model":"tiny","prompt":"hi"}'),
    ],
)
async def test_a_malformed_body_is_a_400(body):
    async with server_and_client() as (_, client):
        response = await client.post("/v1/completions", content=body, headers=JSON)
        after = await client.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, after.status_code) == (400, 200)
    error_of(response)


async def test_what_is_not_there_is_a_404_and_a_wrong_method_a_405():
    async with server_and_client() as (_, client):
        unknown_model = await client.post("/v1/chat/completions", json={**CHAT, "model": "nope"})
        no_model = await client.post("/v1/chat/completions", json={"messages": CHAT["messages"]})
        wrong_method = await client.get("/v1/chat/completions")
        unknown_path = await client.post("/v1/nothing", json=CHAT)
    assert (unknown_model.status_code, error_of(unknown_model)["code"]) == (404, "model_not_found")
    assert (no_model.status_code, error_of(no_model)["param"]) == (400, "model")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert (unknown_path.status_code, error_of(unknown_path)["code"]) == (404, "unknown_url")


NUMBERS = [
    *("NaN", "Infinity", "-Infinity", "1e400", "-0.1", "2.1", '"nan"'),
    *('1, "top_p": NaN', '1, "top_p": -1', '1, "top_p": 1.5', '1, "presence_penalty": 1e308'),
    *('1, "presence_penalty": -3', '1, "repetition_penalty": 0', '1, "repetition_penalty": -1'),
    *('1, "repetition_penalty": NaN', '1, "min_p": 2'),
]


async def test_numbers_that_are_none_are_refused_and_a_stream_beside_them_does_not_change():
    engine = make_engine(step_seconds=0.002, num_blocks=400)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        fields = {"model": "tiny", "prompt": "long", "max_tokens": 400, "stream": True, "return_token_ids": True}

        async def stream() -> list[int]:
            *chunks, done = events_of((await client.post("/v1/completions", json=fields)).text)
            assert done == "[DONE]"
            return [token_id for chunk in chunks for token_id in chunk["choices"][0].get("token_ids", [])]

        alone = await stream()
        streaming = asyncio.create_task(stream())
        normal = {"model": "tiny", "prompt": "hi", "max_tokens": 2}
        for number in NUMBERS:
            body = f'{{"model": "tiny", "prompt": "hi", "max_tokens": 2, "temperature": {number}}}'
            response = await client.post("/v1/completions", content=body, headers=JSON)
            assert response.status_code == 400, number
            error_of(response)
            assert (await client.post("/v1/completions", json=normal)).status_code == 200
        assert (await client.post("/v1/completions", json={**normal, "temperature": 1e-5})).status_code == 200
        assert await streaming == alone


WRONG_TYPES: list[tuple[str, Any]] = [
    *(("stream", "false"), ("max_tokens", "10"), ("max_tokens", 1.5), ("max_tokens", 99999999999999999999)),
    *(("n", 0), ("n", -1), ("n", 129), ("n", 1_000_000_000), ("messages", "hi"), ("messages", [1])),
    *(("messages", [{"role": 5}]), ("stop", 5), ("stop", [1]), ("top_logprobs", True), ("logit_bias", [])),
    *(("seed", "x"), ("model", 7), ("stream_options", 3), ("response_format", "json")),
]


async def test_a_wrong_type_is_named_and_an_unknown_field_is_told_in_a_header():
    async with server_and_client() as (_, client):
        for name, value in WRONG_TYPES:
            response = await client.post("/v1/chat/completions", json={**CHAT, name: value})
            assert response.status_code == 400
            assert error_of(response)["param"].partition("[")[0].partition(".")[0] == name
        unknown = await client.post("/v1/chat/completions", json={**CHAT, "fooo": 1})
    assert (unknown.status_code, unknown.headers["x-ullage-ignored-fields"]) == (200, "fooo")


async def test_huge_requests_are_refused_shortly_while_others_are_served():
    secret = {"role": "wizard", "content": "secret"}
    huge = json.dumps({**CHAT, "messages": [{"role": "user", "content": "x" * (20 << 20)}]}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(huge), 1 << 16):
            yield huge[start : start + (1 << 16)]

    async with server_and_client() as (_, client):
        url = "/v1/chat/completions"
        responses = await asyncio.gather(
            client.post(url, json={**CHAT, "messages": [secret] * 12_000}),
            client.post(url, content=huge, headers=JSON),
            client.post(url, content=chunks(), headers=JSON),
            client.post(url, json=CHAT, headers={f"x-filler-{i}": "a" for i in range(5000)}),
            client.post(url, json=CHAT),
        )
    assert [response.status_code for response in responses] == [400, 413, 413, 431, 200]
    assert "secret" not in error_of(responses[0])["message"]
