"""Whatever a client sends, the answer is JSON of the API's shape with the right status, and the server lives."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.http_server import app_client, events_of
from tests.scripted_engine import ByteTokenizer, LineTemplate, ScriptedEngine, outputs_for, scripted_model

from ullage.base.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    KVCapacityError,
    QueueFullError,
)
from ullage.base.logs import TextFormatter
from ullage.engine.client import GenerationOutput
from ullage.protocol.json_text import parse_json_object
from ullage.service import request_body
from ullage.service.config import ServiceConfig
from ullage.service.request_body import QUICK_BODY_BYTES

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def error_of(response: httpx.Response) -> Any:
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{:", b'{"model": "tiny", ', b"[]", b'"text"', b"[" * 100_000, b"\xff\xfe", b"\xef\xbb\xbf{}"]
)
async def test_a_malformed_body_is_the_clients_mistake(body):
    async with app_client(ScriptedEngine()) as client:
        response = await client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "field",
    ['"temperature": NaN', '"temperature": 1e400', '"top_p": -Infinity', '"user": "\\ud800"', '"seed": ' + "9" * 5000],
)
async def test_numbers_and_texts_that_are_not_json_are_refused(field):
    async with app_client(ScriptedEngine()) as client:
        body = '{"model": "tiny", "prompt": "hi", ' + field + "}"
        response = await client.post("/v1/completions", content=body)
    assert response.status_code == 400
    error_of(response)


async def test_a_body_that_is_not_declared_as_json_is_refused_with_advice():
    async with app_client(ScriptedEngine()) as client:
        response = await client.post("/v1/completions", data={"model": "tiny"})
        charset = await client.post("/v1/completions", content=b"{", headers={"content-type": "application/json; a=b"})
    assert response.status_code == 400
    assert "content-type: application/json" in error_of(response)["message"]
    assert "not valid JSON" in error_of(charset)["message"]


async def test_a_field_at_fault_is_the_param():
    async with app_client(ScriptedEngine()) as client:
        wrong_role = await client.post("/v1/chat/completions", json={**CHAT, "messages": [{"role": "wizard"}]})
        wrong_range = await client.post("/v1/chat/completions", json={**CHAT, "temperature": 2.1})
        tools = await client.post("/v1/chat/completions", json={**CHAT, "tools": [{"type": "function"}]})
        no_model = await client.post("/v1/completions", json={"prompt": "hi"})
    assert error_of(wrong_role)["param"] == "messages[0].role"
    assert error_of(wrong_range)["param"] == "temperature"
    assert error_of(tools)["param"] == "tools[0].function"
    assert error_of(no_model)["param"] == "model"
    assert {response.status_code for response in (wrong_role, wrong_range, tools, no_model)} == {400}


async def test_thousands_of_wrong_items_make_a_short_answer():
    async with app_client(ScriptedEngine()) as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, "messages": [{"role": "secret"}] * 12_000})
    assert response.status_code == 400
    assert len(response.content) < 1000
    assert "secret" not in response.text


async def test_an_unknown_model_is_not_found():
    async with app_client(ScriptedEngine()) as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, "model": "nope"})
    assert response.status_code == 404
    assert (error_of(response)["code"], error_of(response)["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("path", ["/", "/v1/nothing", "/v1/chat/completions/", "/docs"])
async def test_an_unknown_path_is_a_json_404(path):
    async with app_client(ScriptedEngine()) as client:
        response = await client.post(path, json={})
    assert response.status_code == 404
    assert error_of(response)["code"] == "unknown_url"


async def test_a_wrong_method_is_a_json_405_with_the_right_one():
    async with app_client(ScriptedEngine()) as client:
        response = await client.get("/v1/chat/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    error_of(response)


@pytest.mark.parametrize(("path", "allowed"), [("/v1/models", {"GET", "HEAD"}), ("/v1/completions", {"POST"})])
async def test_options_are_told_as_the_methods_that_are_allowed(path, allowed):
    async with app_client(ScriptedEngine()) as client:
        response = await client.options(path)
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == allowed
    error_of(response)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/v1/ledger", "/metrics", "/openapi.json"])
async def test_what_can_be_read_can_be_asked_for_its_header_alone(path):
    async with app_client(ScriptedEngine()) as client:
        response = await client.head(path)
    assert response.status_code == 200
    assert response.headers["x-request-id"]


async def test_embeddings_are_refused_clearly():
    async with app_client(ScriptedEngine()) as client:
        response = await client.post("/v1/embeddings", json={"model": "tiny", "input": "hi"})
    assert response.status_code == 400
    assert "embeddings" in error_of(response)["message"]


async def test_a_body_over_the_limit_is_refused_declared_or_chunked():
    sent = []

    async def chunks() -> AsyncIterator[bytes]:
        for i in range(1000):
            sent.append(i)
            yield b" " * 100

    async with app_client(ScriptedEngine(), config=ServiceConfig(max_body_bytes=1000)) as client:
        declared = await client.post("/v1/chat/completions", content=b" " * 1001)
        chunked = await client.post(
            "/v1/chat/completions", content=chunks(), headers={"content-type": "application/json"}
        )
        fits = await client.post("/v1/chat/completions", json=CHAT)
    assert declared.status_code == chunked.status_code == 413
    assert error_of(chunked)["code"] == "request_too_large"
    assert len(sent) < 20
    assert fits.status_code == 200


async def test_a_body_that_does_not_arrive_is_not_waited_for():
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(10)

    async with app_client(ScriptedEngine(), config=ServiceConfig(body_timeout_seconds=0.01)) as client:
        response = await client.post("/v1/completions", content=slow())
    assert response.status_code == 408
    error_of(response)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextLengthError("too long", param="prompt"), 400, "context_length_exceeded"),
        (KVCapacityError("never fits"), 400, "kv_capacity_exceeded"),
        (QueueFullError("full", retry_after_seconds=2.0), 429, "queue_full"),
        (EngineError("broken"), 503, "engine_failed"),
        (InvalidRequestError("no", param="stop"), 400, None),
    ],
)
async def test_what_the_engine_refuses_is_an_http_error_also_for_a_stream(error, status, code, stream):
    engine = ScriptedEngine()
    engine.refusals[1] = error
    async with app_client(engine) as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, "n": 2, "stream": stream})
    assert response.status_code == status
    assert error_of(response)["code"] == code
    assert engine.num_open == 0


async def test_the_engines_words_for_fields_become_the_clients():
    engine = ScriptedEngine()
    engine.refusals[0] = ContextLengthError("too long", param="prompt")
    async with app_client(engine) as client:
        messages = await client.post("/v1/chat/completions", json=CHAT)
        engine.refusals[0] = ContextLengthError("too long", param="max_tokens")
        newer = await client.post("/v1/chat/completions", json={**CHAT, "max_completion_tokens": 5})
        engine.refusals[0] = ContextLengthError("too long", param="max_tokens")
        older = await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 5})
    assert error_of(messages)["param"] == "messages"
    assert error_of(newer)["param"] == "max_completion_tokens"
    assert error_of(older)["param"] == "max_tokens"


async def test_a_full_queue_says_when_to_come_back():
    engine = ScriptedEngine()
    engine.refusals[0] = QueueFullError("full", retry_after_seconds=2.5)
    async with app_client(engine) as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
    assert response.headers["retry-after"] == "3"
    assert response.headers["retry-after-ms"] == "2500"


def failing(error: Exception | None, finish_reason: str = "error"):
    def script(request):
        first, last = outputs_for(request, ["Hel", "lo"])
        return [first, replace(last, text="", finish_reason=finish_reason, error=error)]

    return script


async def test_an_engine_that_fails_ends_a_stream_with_an_error_event_and_nothing_after_it():
    async with app_client(ScriptedEngine(failing(EngineError("a step failed")))) as client:
        events = events_of((await client.post("/v1/chat/completions", json={**CHAT, "stream": True})).text)
        plain = await client.post("/v1/chat/completions", json=CHAT)
    assert events[-1]["error"]["message"] == "a step failed"
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    assert plain.status_code == 503
    assert error_of(plain)["message"] == "a step failed"


async def test_an_aborted_request_is_an_error_and_never_a_finish_reason():
    async with app_client(ScriptedEngine(failing(None, "abort"))) as client:
        events = events_of(
            (await client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "stream": True})).text
        )
        plain = await client.post("/v1/chat/completions", json=CHAT)
    assert events[-1]["error"]["type"] == "server_error"
    assert plain.status_code == 503


class BrokenTemplate(LineTemplate):
    def render(self, messages, add_generation_prompt=True) -> list[int]:
        raise KeyError("our own mistake")


async def test_our_own_mistake_is_a_500_with_a_request_id_and_a_log_entry(caplog):
    model = replace(scripted_model(), chat_template=BrokenTemplate())
    caplog.handler.setFormatter(TextFormatter())
    with caplog.at_level(logging.ERROR):
        async with app_client(ScriptedEngine(), model) as client:
            response = await client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "find me"})
            after = await client.post("/v1/completions", json={"model": "tiny", "prompt": "hi"})
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert "our own mistake" not in response.text
    assert "a request failed [find me]" in caplog.text
    assert after.status_code == 200


async def test_our_own_mistake_in_a_stream_is_an_error_event():
    def script(request) -> list[GenerationOutput]:
        return [replace(outputs_for(request, ["a"])[0], logprobs=None)]

    async with app_client(ScriptedEngine(script)) as client:
        fields = {**CHAT, "stream": True, "logprobs": True}
        events = events_of((await client.post("/v1/chat/completions", json=fields)).text)
    assert events[-1]["error"]["code"] == "internal_error"


async def test_a_request_id_is_taken_over_when_it_is_printable_and_short():
    async with app_client(ScriptedEngine()) as client:
        for given, kept in [
            ("mine 1", True),
            ("x" * 128, True),
            ("x" * 129, False),
            ("鱼".encode(), False),
            ("", False),
        ]:
            response = await client.get("/v1/models", headers={"x-request-id": given})
            assert (response.headers["x-request-id"] == given) is kept
        fresh = [(await client.get("/nowhere")).headers["x-request-id"] for _ in range(2)]
    assert fresh[0] != fresh[1]


async def test_a_text_far_too_long_is_refused_without_being_tokenized():
    class Untouched(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            raise AssertionError("tokenized")

    model = replace(scripted_model(), tokenizer=Untouched())
    async with app_client(ScriptedEngine(), model) as client:
        prompt = await client.post("/v1/completions", json={"model": "tiny", "prompt": "x" * 1000})
        fields = {**CHAT, "messages": [{"role": "user", "content": "x" * 1000}]}
        messages = await client.post("/v1/chat/completions", json=fields)
    assert error_of(prompt)["code"] == error_of(messages)["code"] == "context_length_exceeded"
    assert (error_of(prompt)["param"], error_of(messages)["param"]) == ("prompt", "messages")


async def test_token_ids_far_too_many_are_refused_before_the_engine_sees_them():
    engine = ScriptedEngine()
    async with app_client(engine) as client:
        response = await client.post("/v1/completions", json={"model": "tiny", "prompt": [[1], [1] * 101]})
    assert error_of(response)["code"] == "context_length_exceeded"
    assert engine.requests == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {**CHAT, "n": 3}, "n"),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "n": 3}, "n"),
        ("/v1/completions", {"model": "tiny", "prompt": ["a", "b", "c"]}, "prompt"),
    ],
)
async def test_more_choices_than_the_engine_ever_takes_at_once_are_refused_for_good(path, fields, param):
    engine = ScriptedEngine()
    engine.max_requests = 2
    async with app_client(engine) as client:
        response = await client.post(path, json=fields)
        fits = await client.post("/v1/chat/completions", json={**CHAT, "n": 2})
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert response.headers["x-should-retry"] == "false"
    assert fits.status_code == 200


async def test_bodies_that_come_at_once_share_a_bounded_room():
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b" " * 600
        began.set()
        await go_on.wait()
        yield json.dumps(CHAT).encode()

    config = ServiceConfig(max_body_bytes=1000, max_held_body_bytes=1000)
    async with app_client(ScriptedEngine(), config=config) as client:
        url, headers = "/v1/chat/completions", {"content-type": "application/json"}
        first = asyncio.create_task(client.post(url, content=slow(), headers=headers))
        await began.wait()
        refused = await client.post(url, content=b" " * 500, headers=headers)
        go_on.set()
        assert (await first).status_code == 200
        assert (await client.post(url, content=json.dumps(CHAT).rjust(900), headers=headers)).status_code == 200
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert error_of(refused)["code"] == "queue_full"


@pytest.mark.parametrize(("num_chars", "on_the_loop"), [(10, True), (QUICK_BODY_BYTES, False)])
async def test_a_large_body_is_parsed_beside_the_event_loop(monkeypatch, num_chars, on_the_loop):
    threads = []

    def parse(body: bytes) -> dict[str, object]:
        threads.append(threading.current_thread())
        return parse_json_object(body)

    monkeypatch.setattr(request_body, "parse_json_object", parse)
    async with app_client(ScriptedEngine()) as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, "user": "x" * num_chars})
    assert response.status_code == 200
    assert [thread is threading.current_thread() for thread in threads] == [on_the_loop]
