"""The API as a client without a library sees it: fields in, JSON or events out, nothing tidied up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.http_server import events_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TIMEOUT_SECONDS = 120

Json = dict[str, Any]


@dataclass(frozen=True)
class Api:
    client: httpx.AsyncClient

    async def post(self, path: str, **fields: object) -> httpx.Response:
        return await self.client.post(path, json={"model": "smollm2", **fields})

    async def complete(self, prompt: object, **fields: object) -> Json:
        return accepted(await self.post(COMPLETIONS, prompt=prompt, **fields))

    async def chat(self, content: object, **fields: object) -> Json:
        return accepted(await self.post(CHAT, messages=as_messages(content), **fields))

    async def stream(self, path: str, **fields: object) -> list[Any]:
        """All events; the last is ``[DONE]`` unless an error ended the stream."""
        answer = await self.post(path, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        return events_of(answer.content.decode())

    @asynccontextmanager
    async def open_stream(self, path: str, **fields: object) -> AsyncIterator[httpx.Response]:
        """To be read, or left, by the caller."""
        body = {"model": "smollm2", "stream": True, **fields}
        async with self.client.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200
            yield answer

    async def refused(self, path: str, status: int = 400, **fields: object) -> Json:
        """The error of a request that must be refused."""
        answer = await self.post(path, **fields)
        assert answer.status_code == status, answer.text
        return error_of(answer)

    async def ledger(self) -> Json:
        return strict_json((await self.client.get("/v1/ledger")).content)

    async def metrics(self) -> dict[str, float]:
        """Samples by name, with their labels where they have some, as ``name{key=value}``."""
        text = (await self.client.get("/metrics")).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {_sample_name(sample.name, sample.labels): sample.value for sample in samples}

    async def until(self, condition: Callable[[Json], bool], seconds: float = 20.0) -> Json:
        """The ledger, once it meets a condition."""
        async with asyncio.timeout(seconds):
            while not condition(ledger := await self.ledger()):
                await asyncio.sleep(0.02)
        return ledger

    async def until_idle(self, seconds: float = 20.0) -> Json:
        """Nothing runs, nothing waits, no block is held."""
        return await self.until(is_idle, seconds)


@asynccontextmanager
async def api_of(url: str, key: str | None = None) -> AsyncIterator[Api]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, limits=limits) as client:
        yield Api(client)


def is_idle(ledger: Json) -> bool:
    requests, blocks = ledger["requests"], ledger["blocks"]
    return (
        requests["running"] == requests["waiting"] == blocks["promised"] == ledger["kv_pool"]["used_bytes"] == 0
        and blocks["free"] == blocks["total"]
    )


def as_messages(content: object) -> object:
    return [{"role": "user", "content": content}] if isinstance(content, str) else content


def accepted(answer: httpx.Response) -> Json:
    assert answer.status_code == 200, answer.text
    return strict_json(answer.content)


def strict_json(body: bytes) -> Json:
    """RFC 8259: neither NaN nor infinity."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(body.decode("utf-8"), parse_constant=refuse)


def error_of(answer: httpx.Response) -> Json:
    """The error object, in the API's shape."""
    assert answer.headers["content-type"] == "application/json"
    error: Json = strict_json(answer.content)["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert isinstance(error["message"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    assert "Traceback" not in answer.text
    return error


def text_of(body: Json, index: int = 0) -> str:
    """The text of a choice of an answer."""
    choice = body["choices"][index]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def pieces_of(events: list[Any], index: int = 0) -> list[str]:
    """The text of a choice of a stream, as it came."""
    choices = [choice for event in events[:-1] for choice in event["choices"] if choice["index"] == index]
    return [choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices]


def end_of(events: list[Any], index: int = 0) -> str:
    """The one finish reason of a choice of a stream."""
    choices = [choice for event in events[:-1] for choice in event["choices"] if choice["index"] == index]
    (reason,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    return reason


def _sample_name(name: str, labels: dict[str, str]) -> str:
    return name + ("{" + ",".join(f"{key}={value}" for key, value in labels.items()) + "}" if labels else "")
