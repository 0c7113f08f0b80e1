"""The real server on a real socket: clients that leave, streams that live, and stopping in good order."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import httpx
import pytest
from tests.http_server import events_of, running_server, until
from tests.scripted_engine import ScriptedEngine

from ullage.service.config import ServiceConfig

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def paused_engine(pause_after: int = 1) -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.pause_after = pause_after
    return engine


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_all_its_choices_at_once(stream, n):
    engine = paused_engine()
    async with running_server(engine) as server, httpx.AsyncClient() as client:
        fields = {**CHAT, "n": n, "stream": stream}
        asking = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=fields))
        await until(lambda: engine.num_open == n)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: engine.num_open == 0, seconds=1.0)


async def test_a_client_that_only_closes_its_sending_side_has_left_too():
    engine = paused_engine()
    async with running_server(engine) as server:
        host, port = server.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = b'{"model": "tiny", "prompt": "hi"}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await until(lambda: engine.num_open == 1)
        writer.write_eof()
        await until(lambda: engine.num_open == 0, seconds=1.0)
        writer.close()


@pytest.mark.parametrize(
    "early", [b"\r\n", b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n"], ids=["a line end", "a request"]
)
async def test_a_client_that_sent_more_than_its_request_is_seen_to_leave(early):
    engine = paused_engine()
    async with running_server(engine) as server:
        host, port = server.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = b'{"model": "tiny", "prompt": "hi"}'
        header = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(header + body + early)
        await until(lambda: engine.num_open == 1)
        writer.write(early)
        await writer.drain()
        writer.close()
        await until(lambda: engine.num_open == 0, seconds=1.0)


async def test_requests_sent_early_are_answered_in_order():
    async with running_server(ScriptedEngine()) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"model": "tiny", "prompt": "hi"}'
        post = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        writer.write(post + b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(5):
            answers = await reader.read()
        writer.close()
    assert answers.count(b"HTTP/1.1 200") == 2
    assert answers.index(b"text_completion") < answers.index(b'"list"')


@pytest.mark.parametrize("healthy", [True, False])
async def test_the_exit_tells_whether_the_engine_had_failed(healthy):
    engine = ScriptedEngine()
    engine.healthy = healthy
    async with running_server(engine) as server:
        signal.raise_signal(signal.SIGTERM)
        await server.task
    assert server.server.engine_failed is not healthy


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing():
    engine = ScriptedEngine()
    async with running_server(engine) as server:
        host, port = server.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        async with httpx.AsyncClient() as client:
            assert (await client.post(f"{server.url}/v1/chat/completions", json=CHAT)).status_code == 200
    assert len(engine.requests) == 1


async def test_headers_and_role_come_before_the_first_token_and_pings_while_there_is_none():
    engine = paused_engine(pause_after=0)
    async with (
        running_server(engine, config=ServiceConfig(port=0, ping_seconds=0.01)) as server,
        httpx.AsyncClient() as client,
        client.stream("POST", f"{server.url}/v1/chat/completions", json={**CHAT, "stream": True}) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert '"role":"assistant"' in await anext(lines)
        assert await anext(lines) == ""
        assert await anext(lines) == ": ping"


async def test_more_requests_at_once_than_allowed_are_told_to_come_back():
    engine = paused_engine()
    async with (
        running_server(engine, config=ServiceConfig(port=0, max_concurrent_requests=1)) as server,
        httpx.AsyncClient() as client,
    ):
        asking = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=CHAT))
        await until(lambda: engine.num_open == 1)
        refused = await client.post(f"{server.url}/v1/chat/completions", json=CHAT)
        assert (await client.get(f"{server.url}/health/ready")).status_code == 200
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: engine.num_open == 0)
        engine.pause_after = None
        assert (await client.post(f"{server.url}/v1/chat/completions", json=CHAT)).status_code == 200
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"


async def test_a_stream_counts_as_a_request_in_work_until_its_end():
    engine = paused_engine()
    async with (
        running_server(engine, config=ServiceConfig(port=0, max_concurrent_requests=1)) as server,
        httpx.AsyncClient() as client,
    ):
        url = f"{server.url}/v1/chat/completions"
        async with client.stream("POST", url, json={**CHAT, "stream": True}) as response:
            assert response.status_code == 200
            assert (await client.post(url, json=CHAT)).status_code == 429
        await until(lambda: engine.num_open == 0)
        engine.pause_after = None
        assert (await client.post(url, json=CHAT)).status_code == 200


async def test_a_huge_header_ends_its_connection_and_nothing_else():
    async with running_server(ScriptedEngine()) as server, httpx.AsyncClient() as client:
        try:
            response = await client.get(f"{server.url}/v1/models", headers={"x-filler": "x" * 1_000_000})
        except httpx.NetworkError:  # the answer was lost with the connection: the client was still sending
            response = httpx.Response(431)
        assert response.status_code == 431
        assert (await client.get(f"{server.url}/v1/models")).status_code == 200


async def test_a_huge_body_is_refused_before_it_is_stored():
    async def body() -> Any:
        for _ in range(20):
            yield b" " * (1 << 20)

    async with running_server(ScriptedEngine()) as server, httpx.AsyncClient() as client:
        headers = {"content-type": "application/json"}
        chunked = await client.post(f"{server.url}/v1/completions", content=body(), headers=headers)
        after = await client.post(f"{server.url}/v1/chat/completions", json=CHAT)
    assert chunked.status_code == 413
    assert after.status_code == 200


async def test_stopping_lets_running_requests_end_and_takes_no_new_ones():
    engine = paused_engine()
    async with running_server(engine) as server, httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=CHAT))
        await until(lambda: engine.num_open == 1)
        signal.raise_signal(signal.SIGTERM)
        async with httpx.AsyncClient(base_url=server.url) as other:
            for _ in range(2):
                told = await other.get("/health/ready")
                assert (told.status_code, told.json()["status"]) == (503, "draining")
                refused = await other.post("/v1/chat/completions", json=CHAT)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
                assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert not asking.done()
        engine.let_go()
        assert (await asking).json()["choices"][0]["finish_reason"] == "stop"
        await server.task
    assert engine.stopped.is_set()
    assert not server.server.force_exit
    assert not server.server.cut_off


async def test_what_does_not_end_in_time_ends_with_an_error():
    engine = paused_engine()
    async with (
        running_server(engine, config=ServiceConfig(port=0, drain_seconds=0.05)) as server,
        httpx.AsyncClient() as client,
    ):
        url = f"{server.url}/v1/chat/completions"
        plain = asyncio.create_task(client.post(url, json=CHAT))
        stream = asyncio.create_task(client.post(url, json={**CHAT, "stream": True}))
        await until(lambda: engine.num_open == 2)
        signal.raise_signal(signal.SIGINT)
        assert (await plain).status_code == 503
        assert (await plain).headers["retry-after"] == "1"
        events = events_of((await stream).text)
        await server.task
    assert events[-1]["error"]["code"] == "server_stopping"
    assert not any(event["choices"][0]["finish_reason"] for event in events[:-1])


async def test_a_body_that_never_comes_ends_with_the_drain_time():
    config = ServiceConfig(port=0, drain_seconds=0.2)
    async with running_server(ScriptedEngine(), config=config) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
        await until(lambda: server.server._service._num_active == 1)
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(3):
            answer = await reader.read()
            await server.task
        writer.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"server_stopping" in answer


async def test_a_second_signal_stops_at_once():
    engine = paused_engine()
    async with running_server(engine) as server, httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=CHAT))
        await until(lambda: engine.num_open == 1)
        began = time.monotonic()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        await server.task
        assert time.monotonic() - began < 5
        assert server.server.force_exit
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
