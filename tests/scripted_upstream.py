"""A server on a real socket that answers as a test says, down to the single byte."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

EVENT_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def reply(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        lines = [f"{name}: {value}" for name, value in (headers or {}).items()]
        head = [
            f"HTTP/1.1 {status} X",
            "content-type: application/json",
            f"content-length: {len(data)}",
            *lines,
            "",
            "",
        ]
        await self.send("\r\n".join(head).encode() + data)

    async def stream(self, *events: bytes) -> None:
        await self.send(EVENT_STREAM)
        for event in events:
            await self.chunk(event)

    def reset(self) -> None:
        """RST instead of FIN."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def client_has_left(self) -> None:
        """Returns when the connection is closed from the other side."""
        while await self.reader.read(1024):
            pass


Script = Callable[[Asked], Awaitable[None]]


def content(text: str) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def whole_answer(asked: Asked) -> None:
    await asked.reply(200, {"ok": True})


@dataclass
class ScriptedUpstream:
    """:ivar script: answers everything but health and the list of models"""

    script: Script = whole_answer
    ready: bool = True
    frozen: bool = False
    """Takes connections and requests, and answers nothing."""
    model: str = "tiny"
    asked: list[Asked] = field(default_factory=list)
    num_probes: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Also again, at the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """As SIGKILL does: no connection is left, new ones are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        try:
            while (asked := await read(reader, writer)) is not None:
                await self._answer(asked)
        except (OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass  # the test looks at the other side
        finally:
            writer.close()
            self._writers.discard(writer)
            self._connections.discard(task)

    async def _answer(self, asked: Asked) -> None:
        is_probe = asked.path == "/health/ready"
        if is_probe:
            self.num_probes += 1
        elif asked.path != "/v1/models":
            self.asked.append(asked)
        if self.frozen:
            await asked.client_has_left()
        elif is_probe:
            await asked.reply(200 if self.ready else 503, {})
        elif asked.path == "/v1/models":
            await asked.reply(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        else:
            await self.script(asked)


async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
    """None: the other side has closed the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body, reader, writer)


@asynccontextmanager
async def scripted_upstreams(*upstreams: ScriptedUpstream) -> AsyncIterator[tuple[ScriptedUpstream, ...]]:
    for upstream in upstreams:
        await upstream.start()
    try:
        yield upstreams
    finally:
        for upstream in upstreams:
            await upstream.kill()
