"""A replica's list of addresses behind the gateway: it holds for the client, whatever that client writes."""

from __future__ import annotations

import httpx
import pytest
from tests.gateway_server import CHAT, running_gateway
from tests.http_server import running_server
from tests.scripted_engine import ScriptedEngine

from ullage.access.config import AccessConfig

GATEWAY = "127.0.0.1"
CLIENT = "127.0.0.2"
SAID = "192.0.2.1"


@pytest.mark.parametrize(
    ("allowed", "trusted_by_gateway", "status"),
    [
        (SAID, None, 403),
        (CLIENT, None, 200),
        (SAID, CLIENT, 200),
        ("198.51.100.0/24", CLIENT, 403),
    ],
)
async def test_the_list_of_a_replica_holds_behind_the_gateway(allowed, trusted_by_gateway, status):
    trusted = GATEWAY if trusted_by_gateway is None else f"{GATEWAY}, {trusted_by_gateway}"
    access = AccessConfig(allowed_clients=f"{GATEWAY}, {allowed}", trusted_proxies=trusted)
    async with (
        running_server(ScriptedEngine(), access=access) as replica,
        running_gateway([replica], trusted_proxies=trusted_by_gateway) as gateway,
        httpx.AsyncClient(
            base_url=gateway.url,
            headers={"x-forwarded-for": SAID},
            transport=httpx.AsyncHTTPTransport(local_address=CLIENT),
        ) as client,
    ):
        chat = await client.post("/v1/chat/completions", json=CHAT)
        models = await client.get("/v1/models")
        assert (chat.status_code, models.status_code) == (status, status)
