"""Clients that send too little, read too little, or are too many: none of them keeps its place."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.http_server import RunningServer, running_server, until
from tests.scripted_engine import ScriptedEngine, outputs_for

from ullage.protocol import client_transport, orderly_server
from ullage.service.config import ServiceConfig

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
HEADER = b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n"
HUGE = ["x" * (1 << 20)] * 16


def num_connections(server: RunningServer) -> int:
    return len(server.server.server_state.connections)


@asynccontextmanager
async def connection(server: RunningServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


def answer_of(raw: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers, JSON body of one answer."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


@pytest.mark.parametrize("sent", [b"", b"GET /v1/models HTTP/1.1\r\nhost: a\r\n"])
async def test_a_connection_that_sends_no_whole_header_is_closed(sent):
    config = ServiceConfig(port=0, header_timeout_seconds=0.05)
    async with running_server(ScriptedEngine(), config=config) as server, connection(server) as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        await until(lambda: num_connections(server) == 0)


async def test_the_second_header_of_a_connection_must_come_in_time_too_however_slowly_it_drips():
    config = ServiceConfig(port=0, header_timeout_seconds=0.2)
    async with running_server(ScriptedEngine(), config=config) as server, connection(server) as (reader, writer):
        writer.write(HEADER)
        assert b"200" in await reader.readline()

        async def drip() -> None:
            while True:
                writer.write(b"G")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        with contextlib.suppress(ConnectionResetError):  # what dripped in meanwhile
            async with asyncio.timeout(2):
                await reader.read()
        dripping.cancel()


async def test_a_body_that_nobody_waits_for_any_more_does_not_keep_its_connection():
    config = ServiceConfig(port=0, header_timeout_seconds=0.05)
    async with running_server(ScriptedEngine(), config=config) as server, connection(server) as (reader, writer):
        writer.write(b"POST /v1/nothing HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n{")
        assert b"404" in await reader.readline()
        writer.write(b" ")
        async with asyncio.timeout(2):
            await reader.read()


async def test_a_request_in_work_may_take_longer_than_its_header():
    engine = ScriptedEngine()
    engine.pause_after = 1
    config = ServiceConfig(port=0, header_timeout_seconds=0.05, send_timeout_seconds=0.05)
    async with running_server(engine, config=config) as server, httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=CHAT))
        await until(lambda: engine.num_open == 1)
        await asyncio.sleep(0.15)
        engine.let_go()
        assert (await asking).status_code == 200


async def test_one_connection_too_many_is_told_and_closed_and_the_next_finds_room():
    async with running_server(ScriptedEngine(), config=ServiceConfig(port=0, max_connections=1)) as server:
        async with connection(server):
            await until(lambda: num_connections(server) == 1)
            async with connection(server) as (reader, _):
                status, headers, body = answer_of(await reader.read())
            assert (status, body["error"]["code"]) == (429, "queue_full")
            assert (headers["connection"], headers["retry-after"]) == ("close", "1")
            assert headers["x-request-id"]
        await until(lambda: num_connections(server) == 0)
        async with connection(server) as (reader, writer):
            writer.write(HEADER)
            assert b"200" in await reader.readline()


def ask(server: RunningServer, stream: bool) -> socket.socket:
    """The connection, on which nothing has been read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
    host, port = server.url.removeprefix("http://").split(":")
    client.connect((host, int(port)))
    body = json.dumps({**CHAT, "stream": stream}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    client.sendall(head + body)
    return client


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_stops_reading_loses_its_place(stream):
    engine = ScriptedEngine(lambda request: outputs_for(request, HUGE))
    async with running_server(engine, config=ServiceConfig(port=0, send_timeout_seconds=0.05)) as server:
        with ask(server, stream):
            await until(lambda: len(engine.requests) == 1)
            await until(lambda: engine.num_open == num_connections(server) == 0)
            await until(lambda: not server.server.server_state.tasks)


async def test_a_client_that_reads_slowly_gets_all_of_its_answer():
    engine = ScriptedEngine(lambda request: outputs_for(request, HUGE))
    async with running_server(engine, config=ServiceConfig(port=0, send_timeout_seconds=1.0)) as server:
        with ask(server, stream=True) as client:
            client.setblocking(False)
            num_received, part = 0, b" "
            async with asyncio.timeout(20):
                while part and b"[DONE]" not in part:
                    await asyncio.sleep(0.02)
                    part = await asyncio.get_running_loop().sock_recv(client, 1 << 20)
                    num_received += len(part)
    assert num_received > len(HUGE) * len(HUGE[0])


async def test_a_client_that_takes_a_little_now_and_then_loses_its_place():
    engine = ScriptedEngine(lambda request: outputs_for(request, HUGE))
    config = ServiceConfig(port=0, send_timeout_seconds=0.3, send_bytes_per_second=1 << 40)
    async with running_server(engine, config=config) as server:
        with ask(server, stream=True) as client:
            client.setblocking(False)

            async def drip() -> None:
                while await asyncio.get_running_loop().sock_recv(client, 1 << 16):
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            await until(lambda: len(engine.requests) == 1)
            await until(lambda: engine.num_open == num_connections(server) == 0)
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.parametrize(
    ("sent", "expected_status"),
    [
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"x" * 100_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000, 431),
    ],
)
async def test_what_is_not_http_gets_an_answer_in_the_api_shape(sent, expected_status):
    async with running_server(ScriptedEngine()) as server, connection(server) as (reader, writer):
        writer.write(sent)
        status, headers, body = answer_of(await reader.read())
    assert (status, headers["content-type"], headers["connection"]) == (expected_status, "application/json", "close")
    assert headers["x-request-id"].startswith("req-")
    assert body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("together", [True, False])
async def test_a_body_that_is_not_http_is_answered_under_its_request_id(together):
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-request-id: mine\r\ntransfer-encoding: chunked\r\n\r\n"
    async with running_server(ScriptedEngine()) as server, connection(server) as (reader, writer):
        writer.write(head)
        if not together:
            await until(lambda: len(server.server.server_state.tasks) == 1)
        writer.write(b"nonsense\r\n")
        status, headers, _ = answer_of(await reader.read())
    assert (status, headers["x-request-id"]) == (400, "mine")


async def test_an_idle_connection_serves_again_until_its_time_is_over():
    for keep_alive_seconds, num_answers in ((75, 2), (0, 1)):
        config = ServiceConfig(port=0, keep_alive_seconds=keep_alive_seconds)
        async with running_server(ScriptedEngine(), config=config) as server, connection(server) as (reader, writer):
            for _ in range(num_answers):
                writer.write(HEADER)
                async with asyncio.timeout(2):
                    assert b"live" in await reader.readuntil(b"}")
            if keep_alive_seconds == 0:
                async with asyncio.timeout(2):
                    assert await reader.read() == b""


async def test_a_stop_waits_for_no_request_that_ignores_it(monkeypatch):
    monkeypatch.setattr(orderly_server, "STOP_MARGIN_SECONDS", 0.0)
    config = ServiceConfig(port=0, drain_seconds=0.0)
    async with running_server(ScriptedEngine(), config=config) as server, connection(server) as (_, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
        await until(lambda: len(server.server.server_state.tasks) == 1)
        server.server.should_exit = True
        async with asyncio.timeout(3):
            await asyncio.shield(server.task)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/nothing", "/v1/completions"])
async def test_an_answer_that_comes_before_the_body_is_read_arrives_all_the_same(path):
    size = 4 << 20
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n".encode()
    config = ServiceConfig(port=0, max_body_bytes=1000)
    async with running_server(ScriptedEngine(), config=config) as server, connection(server) as (reader, writer):
        writer.write(head)
        while (await reader.read(1)) != b"\n":  # the answer has begun: the rest of the body finds nobody
            pass
        writer.write(b" " * size)
        await writer.drain()
        assert b'"error"' in await reader.read()


async def test_a_client_that_goes_on_sending_after_its_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(client_transport, "LINGER_SECONDS", 0.05)
    head = b"POST /v1/nothing HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 1000\r\n\r\n"
    async with running_server(ScriptedEngine()) as server, connection(server) as (reader, writer):
        writer.write(head)
        assert b"404" in await reader.readline()
        await until(lambda: num_connections(server) == 0)


async def test_a_body_that_drips_is_bounded_as_a_whole():
    config = ServiceConfig(port=0, body_timeout_seconds=0.3)
    async with running_server(ScriptedEngine(), config=config) as server, connection(server) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-request-id: slow\r\ncontent-length: 1000\r\n\r\n")

        async def drip() -> None:
            for _ in range(900):
                writer.write(b" ")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(3):
            head = await reader.readuntil(b"\r\n\r\n")
        dripping.cancel()
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"x-request-id: slow\r\n" in head
