"""The real gateway on a free port, on the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tests.scripted_upstream import ScriptedUpstream

from ullage.gateway.config import GatewayConfig
from ullage.gateway.gateway import Gateway
from ullage.gateway.replica_file import ReplicaConfig
from ullage.gateway.server import Server, bind

QUICK = {
    "port": 0,
    "drain_seconds": 1.0,
    "health_interval_seconds": 0.05,
    "health_timeout_seconds": 0.2,
    "connect_timeout_seconds": 0.5,
    "slow_start_seconds": 0.0,
    "ejection_seconds": 0.2,
}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@dataclass(frozen=True)
class RunningGateway:
    url: str
    client: httpx.AsyncClient
    gateway: Gateway
    server: Server
    task: asyncio.Task[None]
    wanted: list[ReplicaConfig]
    """What the next reload reads."""

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json={**CHAT, **fields})

    async def stream(self) -> str:
        """All that a client sees of a streamed answer."""
        response = await self.chat(stream=True)
        assert response.status_code == 200
        return response.text

    async def states(self) -> dict[str, str]:
        about = (await self.client.get("/gateway/replicas")).json()["replicas"]
        return {replica["name"]: replica["state"] for replica in about}

    def outcomes(self, name: str) -> dict[str, int]:
        (counts,) = (replica.counts for replica in self.gateway.replicas if replica.config.name == name)
        return {outcome: count for outcome, count in counts.items() if count}


def replica_configs(upstreams: Sequence[ScriptedUpstream], weights: Sequence[float] = ()) -> list[ReplicaConfig]:
    """They are called a, b, c."""
    weights = weights or [1.0] * len(upstreams)
    names = "abcdefgh"[: len(upstreams)]
    return [ReplicaConfig(name, up.url, weight) for name, up, weight in zip(names, upstreams, weights, strict=True)]


@asynccontextmanager
async def running_gateway(
    upstreams: Sequence[ScriptedUpstream], weights: Sequence[float] = (), **settings: Any
) -> AsyncIterator[RunningGateway]:
    config = GatewayConfig(**{**QUICK, **settings})
    wanted = replica_configs(upstreams, weights)
    gateway = Gateway(config, tuple(wanted), lambda: tuple(wanted))
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with bind(config) as bound:
        server = Server(gateway, ready.set_result)
        task = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            url = await ready
            async with httpx.AsyncClient(base_url=url, timeout=20) as client:
                yield RunningGateway(url, client, gateway, server, task, wanted)
        finally:
            server.should_exit = True
            await task
