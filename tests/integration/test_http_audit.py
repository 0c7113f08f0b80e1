"""The audit log of the real app."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import datetime

import httpx
import pytest
from tests.http_server import app_client, running_server, until
from tests.integration.test_http_embedded import make_engine
from tests.scripted_engine import ScriptedEngine

from ullage.access.config import AccessConfig
from ullage.access.keys import KeyStore
from ullage.protocol.known_path import UNKNOWN_PATH
from ullage.service.observation import OTHER_METHOD

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.log"


def lines(path):
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def config(path, **others):
    return AccessConfig(audit_log_file=str(path), **others)


async def test_a_generation_is_told_with_who_asked_what_it_cost_and_how_it_ended(path, tmp_path):
    key, text = KeyStore(tmp_path / "keys.db").create("acme", "", ("inference",))
    headers = {"authorization": f"Bearer {text}", "x-request-id": "mine"}
    access = config(path, api_keys_file=str(tmp_path / "keys.db"))
    async with running_server(make_engine(), access=access) as server, httpx.AsyncClient(headers=headers) as client:
        answer = await client.post(f"{server.url}/v1/chat/completions", json=CHAT | {"n": 2, "max_tokens": 4})
        await client.get(f"{server.url}/v1/models")
    usage = answer.json()["usage"]
    (line,) = lines(path)
    assert datetime.fromisoformat(line.pop("time")).utcoffset().total_seconds() == 0
    seconds = [line.pop(f"{name}_seconds") for name in ("queue", "first_token", "total")]
    assert seconds == sorted(seconds)
    assert line == {
        "id": "mine",
        "tenant": "acme",
        "key_id": key.id,
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": "tiny",
        "status": 200,
        "error": None,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "generated_tokens": usage["completion_tokens"],
        "finish_reasons": [choice["finish_reason"] for choice in answer.json()["choices"]],
    }


async def test_refused_and_failed_requests_are_told_with_their_codes_and_no_secret(path, tmp_path):
    _, text = KeyStore(tmp_path / "keys.db").create("acme", "", ("inference",), models=("tiny",))
    good = {"authorization": f"Bearer {text}"}
    access = config(path, api_keys_file=str(tmp_path / "keys.db"))
    async with app_client(ScriptedEngine(), access=access) as client:
        await client.get("/v1/models", headers={"authorization": "Bearer marker-a"})
        await client.get("/v1/models?api_key=marker-b")
        await client.get("/metrics", headers=good)
        await client.post("/v1/chat/completions", json=CHAT | {"model": "marker-c"}, headers=good)
        await client.get("/marker%0Anext", headers=good)
        await client.post("/v1/chat/completions", json=CHAT | {"temperature": 9}, headers=good)
        await client.get("/health/live")
        await client.request("MARKER-D", "/v1/chat/completions", headers=good)
    told = lines(path)
    assert [(line["status"], line["error"]) for line in told] == [
        (401, "invalid_api_key"),
        (401, "invalid_api_key"),
        (403, "permission_denied"),
        (403, "permission_denied"),
        (404, "unknown_url"),
        (400, "invalid_request_error"),
        (405, "method_not_allowed"),
    ]
    assert [line["tenant"] for line in told] == ["", "", *["acme"] * 5]
    assert told[6]["method"] == OTHER_METHOD
    assert told[4]["path"] == UNKNOWN_PATH
    content = path.read_text()
    assert not any(secret in content for secret in (text, text[-64:], "marker", "MARKER", "hi"))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_told_with_what_it_used(path, stream):
    engine = ScriptedEngine()
    engine.pause_after = 1
    async with running_server(engine, access=config(path)) as server, httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=CHAT | {"stream": stream}))
        await until(lambda: engine.num_open == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: engine.num_open == 0)
    (line,) = lines(path)
    assert line["finish_reasons"] == ["abort"]
    assert line["generated_tokens"] > 0
    assert line["status"] == (200 if stream else 499)


async def test_a_completion_that_only_echoes_is_told_too_and_other_answers_are_not(path):
    async with app_client(ScriptedEngine(), access=config(path)) as client:
        fields = {"model": "tiny", "prompt": "hi", "max_tokens": 0, "echo": True}
        assert (await client.post("/v1/completions", json=fields)).status_code == 200
        assert (await client.post("/tokenize", json={"prompt": "hi"})).status_code == 200
        assert (await client.get("/v1/models")).status_code == 200
    assert [(line["path"], line["model"], line["status"]) for line in lines(path)] == [("/v1/completions", "tiny", 200)]


@pytest.mark.parametrize("with_texts", [False, True])
async def test_prompts_and_answers_are_written_only_when_asked_for(path, with_texts):
    access = config(path, audit_log_prompts=with_texts)
    async with app_client(ScriptedEngine(), access=access) as client:
        answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": ["one", "two"], "n": 2})
    (line,) = lines(path)
    texts = [choice["text"] for choice in answer.json()["choices"]]
    assert (line.get("prompts"), line.get("answers")) == ((["one", "two"], texts) if with_texts else (None, None))


@pytest.mark.parametrize("is_required", [False, True])
async def test_a_log_that_can_not_be_written_stops_the_service_only_where_it_is_required(
    path, monkeypatch, is_required
):
    real_write = os.write

    def write(file, line):
        if line.startswith(b'{"'):
            raise OSError(28, "No space left on device")
        return real_write(file, line)

    monkeypatch.setattr(os, "write", write)
    async with app_client(ScriptedEngine(), access=config(path, audit_log_required=is_required)) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        async with asyncio.timeout(10):
            while "ullage_audit_log_failing 1.0" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.005)
        assert "ullage_audit_lines_lost_total 0.0" in (await client.get("/metrics")).text
        answer = await client.post("/v1/chat/completions", json=CHAT)
        readiness = await client.get("/health/ready")
        liveness = await client.get("/health/live")
    assert liveness.status_code == 200
    if is_required:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "audit_log_unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert readiness.status_code == 503
    else:
        assert (answer.status_code, readiness.status_code) == (200, 200)
