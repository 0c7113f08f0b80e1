"""The real app: called directly, or behind the real server on a free port, on the test's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tests.scripted_engine import scripted_model

from ullage.access.config import AccessConfig
from ullage.engine.client import EngineClient
from ullage.protocol.orderly_server import address_of
from ullage.service.app import create_app
from ullage.service.config import ServiceConfig
from ullage.service.known_answer import KnownQuestion
from ullage.service.served_model import ServedModel
from ullage.service.server import Server, bind


@asynccontextmanager
async def app_client(
    engine: EngineClient,
    model: ServedModel | None = None,
    config: ServiceConfig | None = None,
    access: AccessConfig | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, without a network."""
    app = create_app(engine, model or scripted_model(), config or ServiceConfig(), access)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        yield client


@dataclass(frozen=True, slots=True)
class RunningServer:
    url: str
    server: Server
    task: asyncio.Task[None]


@asynccontextmanager
async def running_server(
    engine: EngineClient,
    model: ServedModel | None = None,
    config: ServiceConfig | None = None,
    access: AccessConfig | None = None,
    question: KnownQuestion | None = None,
) -> AsyncIterator[RunningServer]:
    config = config or ServiceConfig(port=0, drain_seconds=1.0)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with bind(config) as bound:
        app = create_app(engine, model or scripted_model(), config, access, question)
        server = Server(app, config, ready.set_result)
        running = RunningServer(
            address_of(bound, "https" if config.tls_cert_file else "http"),
            server,
            asyncio.create_task(server.serve(sockets=[bound])),
        )
        try:
            assert await ready == running.url
            yield running
        finally:
            server.should_exit = True
            await running.task


async def until(condition: Any, seconds: float = 5.0) -> None:
    """Waits for something to become true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def events_of(text: str) -> list[Any]:
    """The JSON of each event; ``[DONE]`` as it is. Comments are left out."""
    blocks = text.removesuffix("\n\n").split("\n\n")
    data = [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
    return [event if event == "[DONE]" else json.loads(event) for event in data]
