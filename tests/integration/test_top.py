"""``ullage top`` against a real server, and against what is none."""

from __future__ import annotations

import asyncio

import pytest
from tests.http_server import running_server
from tests.integration.test_http_embedded import make_engine

from ullage.cli.main import run
from ullage.cli.top import read


async def test_once_prints_a_frame_of_a_running_server(capsys):
    async with running_server(make_engine()) as server:
        code = await asyncio.to_thread(run, ["top", server.url, "--once"])
    assert code == 0
    text = capsys.readouterr().out
    assert "0 running, 0 waiting" in text
    assert "kv_pool" in text
    assert "free" in text


@pytest.mark.parametrize(
    ("url", "message", "code"),
    [
        ("http://127.0.0.1:9", "doesn't answer", 1),
        ("ftp://h", "no address of a server", 2),
        ("http://[", "doesn't answer", 1),
    ],
)
def test_what_is_no_server_is_told_in_one_line(url, message, code, capsys):
    assert run(["top", url]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


async def test_another_program_is_told_apart():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reading = await asyncio.to_thread(read, f"http://127.0.0.1:{port}")
    assert reading.body is None
    assert "isn't a server of this release" in reading.trouble
