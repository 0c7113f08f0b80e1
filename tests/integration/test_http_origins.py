"""From where requests come: addresses, proxies, and pages of other origins."""

from __future__ import annotations

import httpx
import pytest
from tests.http_server import app_client, running_server
from tests.scripted_engine import ScriptedEngine

from ullage.access.config import AccessConfig
from ullage.access.keys import KeyStore
from ullage.base.errors import ConfigError

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


async def test_an_address_that_is_not_listed_is_refused_but_for_liveness():
    access = AccessConfig(allowed_clients="192.0.2.0/24", cors_origins=PAGE)
    async with app_client(ScriptedEngine(), access=access) as client:
        for path in ("/v1/models", "/metrics", "/health/ready", "/nothing", "//health/live"):
            answer = await client.get(path, headers={"x-forwarded-for": "192.0.2.1", "forwarded": "for=192.0.2.1"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
            assert answer.headers["x-request-id"]
        assert (await client.options("/v1/models", headers=PREFLIGHT)).status_code == 403
        assert (await client.get("/health/live")).status_code == 200


async def test_the_list_comes_before_keys_and_before_the_body(tmp_path):
    KeyStore(tmp_path / "keys.db")
    access = AccessConfig(allowed_clients="192.0.2.0/24", api_keys_file=str(tmp_path / "keys.db"))
    async with app_client(ScriptedEngine(), access=access) as client:
        assert (await client.post("/v1/completions", content=b"{")).status_code == 403


async def test_behind_a_trusted_proxy_the_client_counts_and_can_not_pretend_to_be_another():
    access = AccessConfig(allowed_clients="192.0.2.0/24", trusted_proxies="127.0.0.1")
    async with running_server(ScriptedEngine(), access=access) as server, httpx.AsyncClient() as client:

        async def status(forwarded):
            return (await client.get(f"{server.url}/v1/models", headers={"x-forwarded-for": forwarded})).status_code

        assert await status("192.0.2.1") == 200
        assert await status("192.0.2.1, 198.51.100.1") == 403
        assert await status("198.51.100.1, 192.0.2.1") == 200


async def test_without_trusted_proxies_nobody_s_header_counts_not_even_from_this_machine():
    access = AccessConfig(allowed_clients="192.0.2.0/24")
    async with running_server(ScriptedEngine(), access=access) as server, httpx.AsyncClient() as client:
        answer = await client.get(f"{server.url}/v1/models", headers={"x-forwarded-for": "192.0.2.1"})
    assert answer.status_code == 403


async def test_a_reload_changes_the_list_and_refuses_what_is_none():
    async with app_client(ScriptedEngine(), access=AccessConfig(allowed_clients="192.0.2.0/24")) as client:
        reloads = client._transport.app.state.service.reloads
        settings = dict(reloads._settings)
        reloads.follow(lambda: settings, dict(settings))
        settings["allowed_clients"] = "127.0.0.0"
        assert await reloads.reload() == ["allowed_clients"]
        assert (await client.get("/v1/models")).status_code == 403
        settings["allowed_clients"] = "127.0.0.0/8"
        await reloads.reload()
        assert (await client.get("/v1/models")).status_code == 200
        settings["allowed_clients"] = "127.0.0.1/8"
        with pytest.raises(ConfigError):
            await reloads.reload()
        assert (await client.get("/v1/models")).status_code == 200


async def test_pages_of_listed_origins_may_ask_without_a_key_what_they_may_do_and_nothing_else(tmp_path):
    _, text = KeyStore(tmp_path / "keys.db").create("acme", "", ("inference",))
    access = AccessConfig(cors_origins=f"{PAGE}, http://localhost:3000", api_keys_file=str(tmp_path / "keys.db"))
    async with app_client(ScriptedEngine(), access=access) as client:
        asked = await client.options("/v1/chat/completions", headers=PREFLIGHT)
        assert (asked.status_code, asked.content) == (204, b"")
        assert asked.headers["access-control-allow-origin"] == PAGE
        assert asked.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
        assert "access-control-allow-credentials" not in asked.headers
        for headers in ({}, {"origin": PAGE}):  # no preflight
            assert (await client.options("/v1/models", headers=headers)).status_code == 401
        refused = await client.get("/v1/models", headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        served = await client.get("/v1/models", headers={"origin": PAGE, "authorization": f"Bearer {text}"})
        assert (served.status_code, served.headers["access-control-allow-origin"]) == (200, PAGE)
        assert served.headers["access-control-expose-headers"] == "*"


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", f"{PAGE}.evil.com", PAGE.upper()])
async def test_other_origins_get_no_permission(origin):
    async with app_client(ScriptedEngine(), access=AccessConfig(cors_origins=PAGE)) as client:
        asked = await client.options("/v1/models", headers=PREFLIGHT | {"origin": origin})
        answer = await client.get("/v1/models", headers={"origin": origin})
    assert (asked.status_code, asked.json()["error"]["code"]) == (403, "permission_denied")
    assert "access-control-allow-origin" not in asked.headers
    assert "access-control-allow-origin" not in answer.headers


async def test_by_default_no_page_of_another_origin_may_call():
    async with app_client(ScriptedEngine()) as client:
        assert (await client.options("/v1/models", headers=PREFLIGHT)).status_code == 405
        answer = await client.get("/v1/models", headers={"origin": PAGE})
    assert not any(name.startswith("access-control-") for name in answer.headers)


async def test_all_origins_may_call_a_server_without_keys():
    async with app_client(ScriptedEngine(), access=AccessConfig(cors_origins="*")) as client:
        asked = await client.options("/v1/models", headers=PREFLIGHT)
    assert asked.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("text", ["chat.example.com", f"{PAGE}/", "null", "HTTPS://chat.example.com", "", f"{PAGE},"])
def test_what_is_no_origin_is_refused(text):
    with pytest.raises(ConfigError, match="no origin"):
        AccessConfig(cors_origins=text)


def test_all_origins_and_keys_do_not_go_together():
    with pytest.raises(ConfigError, match="API keys"):
        AccessConfig(cors_origins="*", api_keys_file="keys.db")
