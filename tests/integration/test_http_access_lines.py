"""One line for each request, when all of it has ended: what was asked and what it cost, nothing that was said."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http_server import app_client, running_server, until
from tests.integration.test_http_embedded import make_engine

from ullage.base.logs import set_up_logging
from ullage.service.config import ServiceConfig

SECRET = "the prompt nobody should read"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Of JSON lines."""
    loggers = [logging.getLogger(name) for name in ("", "ullage", "uvicorn")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    stream = io.StringIO()
    set_up_logging("info", "json", stream)
    yield stream
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


def lines_of(log: io.StringIO) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in lines if line["logger"] == "ullage.service.observation"]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": SECRET, "max_tokens": 4, "ignore_eos": True, **fields}


async def test_a_line_says_what_was_asked_and_what_it_cost(log: io.StringIO) -> None:
    async with app_client(make_engine()) as client:
        headers = {"x-request-id": "mine", "authorization": "Bearer ullage-key"}
        await client.post("/v1/completions?a=secret", json=body(n=2), headers=headers)
        await client.get("/health/live")
        await client.get("/v1/models")
    asked, listed = lines_of(log)
    assert asked.pop("seconds") >= 0
    assert asked.pop("time") <= listed["time"]
    assert asked == {
        "level": "info",
        "logger": "ullage.service.observation",
        "message": asked["message"],
        "request_id": "mine",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "prompt_tokens": 2 * len(SECRET),
        "cached_tokens": asked["cached_tokens"],
        "output_tokens": 8,
        "finish_reasons": ["length", "length"],
    }
    assert listed["request_id"].startswith("req-")
    assert not any(word in log.getvalue() for word in ("nobody", "ullage-key", "secret"))


async def test_a_refusal_has_its_code_and_no_tokens(log: io.StringIO) -> None:
    async with app_client(make_engine()) as client:
        answer = await client.post("/v1/completions", json=body(model="other"))
    (line,) = lines_of(log)
    assert (line["status"], line["error_code"]) == (404, "model_not_found")
    assert line["request_id"] == answer.headers["x-request-id"]
    assert "output_tokens" not in line


async def test_a_client_that_leaves_has_a_line_with_what_was_made_for_it(log: io.StringIO) -> None:
    engine = make_engine(step_seconds=0.01)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json=body(max_tokens=90)))
        await until(lambda: engine.status().num_generated_tokens > 2)
        asking.cancel()
        await until(lambda: lines_of(log))
    (line,) = lines_of(log)
    assert (line["status"], line["finish_reasons"]) == (499, ["abort"])
    assert line["output_tokens"] == engine.status().num_generated_tokens


async def test_a_path_cannot_forge_a_line_or_fill_the_log(log: io.StringIO) -> None:
    async with app_client(make_engine()) as client:
        await client.get("/a%0a%1b[2J" + "x" * 5000)
    (line,) = lines_of(log)
    assert len(line["path"]) < 300
    assert len(line["message"]) < 300
    assert line["message"].isprintable()


async def test_what_a_request_causes_to_be_logged_bears_its_id(log: io.StringIO) -> None:
    class Broken(Exception):
        pass

    def fail(**_: object) -> None:
        raise Broken

    engine = make_engine()
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        engine.check_room = fail  # type: ignore[method-assign]
        answer = await client.post("/v1/completions", json=body())
    assert answer.status_code == 500
    told = [json.loads(line) for line in log.getvalue().splitlines()]
    (error,) = [line for line in told if line["level"] == "error"]
    assert error["request_id"] == answer.headers["x-request-id"]
    assert "Broken" in error["traceback"]


async def test_connections_that_are_refused_are_counted(log: io.StringIO) -> None:
    async with running_server(make_engine(), config=ServiceConfig(port=0, max_connections=2)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        for nonsense in (b"no http\r\n\r\n",):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(nonsense)
            await reader.read()
            writer.close()
        held = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        await held[-1][0].read()
        for _, writer in held:
            writer.close()
        async with httpx.AsyncClient(base_url=server.url) as client:
            text = (await client.get("/metrics")).text
    assert 'ullage_refusals_total{code="queue_full"} 1.0' in text
    assert 'ullage_refusals_total{code="invalid_request_error"} 1.0' in text
