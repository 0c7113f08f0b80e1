"""API keys against the real app."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from tests.http_server import app_client
from tests.scripted_engine import ScriptedEngine, scripted_model

from ullage.access.config import AccessConfig
from ullage.access.keys import KeyStore

PATHS = ["/v1/models", "//v1/models", "/v1/models/", "/%76%31/models", "/metrics", "/health/ready", "/v1/ledger", "/x"]


def test_without_a_key_only_liveness_answers(tmp_path):
    async def check():
        access = AccessConfig(api_keys_file=str(tmp_path / "keys.db"))
        async with app_client(ScriptedEngine(), access=access) as client:
            assert (await client.get("/health/live")).status_code == 200
            for path in PATHS:
                for method in ("GET", "HEAD", "POST", "OPTIONS"):
                    answer = await client.request(method, path)
                    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
                    assert method == "HEAD" or answer.json()["error"]["code"] == "invalid_api_key"

    asyncio.run(check())


def test_a_key_opens_the_api_and_is_neither_taken_from_the_address_nor_told_again(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, logger="ullage")
    key, text = KeyStore(tmp_path / "keys.db").create("acme", "", ("inference",))

    async def check():
        access = AccessConfig(api_keys_file=str(tmp_path / "keys.db"))
        async with app_client(ScriptedEngine(), access=access) as client:
            headers = {"authorization": f"Bearer {text}"}
            answers = [
                await client.get("/v1/models", headers=headers),
                await client.get("/metrics", headers=headers),
                await client.get(f"/v1/models?api_key={text}"),
            ]
            await asyncio.to_thread(KeyStore(tmp_path / "keys.db").revoke, key.id)
            answers.append(await client.get("/v1/models", headers=headers))
        assert [answer.status_code for answer in answers] == [200, 403, 401, 401]
        assert not any(text in answer.text for answer in answers)

    asyncio.run(check())
    assert text not in caplog.text


@pytest.mark.parametrize(("asked", "salt"), [(None, "tenant:4:acme:"), ("tenant:1:b:", "tenant:4:acme:tenant:1:b:")])
def test_the_engine_gets_the_tenant_and_a_salt_of_its_own(tmp_path, asked, salt):
    _, text = KeyStore(tmp_path / "keys.db").create("acme", "", ("inference",))
    engine = ScriptedEngine()
    submitted = []
    submit = engine.submit
    engine.submit = lambda request, on_end: (submitted.append(request), submit(request, on_end))[1]

    async def check():
        access = AccessConfig(api_keys_file=str(tmp_path / "keys.db"))
        async with app_client(engine, access=access) as client:
            model = (await client.get("/v1/models", headers={"authorization": f"Bearer {text}"})).json()["data"][0][
                "id"
            ]
            body = {"model": model, "prompt": "a", "max_tokens": 1} | ({"cache_salt": asked} if asked else {})
            await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {text}"})

    asyncio.run(check())
    assert [(request.tenant, request.cache_salt) for request in submitted] == [("acme", salt)]


async def test_a_key_opens_and_shows_its_own_models_only(tmp_path):
    _, text = KeyStore(tmp_path / "keys.db").create("acme", "", ("inference",), models=("second",))
    model = replace(scripted_model(), names=("first", "second"))
    access = AccessConfig(api_keys_file=str(tmp_path / "keys.db"))
    async with app_client(ScriptedEngine(), model, access=access) as client:
        client.headers["authorization"] = f"Bearer {text}"
        assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["second"]
        chat = {"messages": [{"role": "user", "content": "a"}]}
        bodies = {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": chat, "/tokenize": {"prompt": "a"}}
        for path, body in bodies.items():
            assert (await client.post(path, json=body | {"model": "second"})).status_code == 200
            for name in ("first", "unknown"):
                refused = await client.post(path, json=body | {"model": name})
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        assert (await client.get("/v1/models/second")).status_code == 200
        assert (await client.get("/v1/models/first")).status_code == 403
        assert (await client.post("/tokenize", json={"prompt": "a"})).status_code == 200


async def test_a_key_for_none_of_the_models_uses_none(tmp_path):
    _, text = KeyStore(tmp_path / "keys.db").create("acme", "", ("inference",), models=("elsewhere",))
    access = AccessConfig(api_keys_file=str(tmp_path / "keys.db"))
    async with app_client(ScriptedEngine(), access=access) as client:
        client.headers["authorization"] = f"Bearer {text}"
        assert (await client.get("/v1/models")).json()["data"] == []
        assert (await client.post("/tokenize", json={"prompt": "a"})).status_code == 403


async def test_keys_that_can_not_be_read_are_told_as_what_they_are(tmp_path):
    _, text = KeyStore(tmp_path / "keys.db").create("acme", "", ("inference",))
    access = AccessConfig(api_keys_file=str(tmp_path / "keys.db"))
    async with app_client(ScriptedEngine(), access=access) as client:
        (tmp_path / "keys.db").unlink()
        answer = await client.get("/v1/models", headers={"authorization": f"Bearer {text}"})
        assert (await client.get("/health/live")).status_code == 200
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "access_store_unavailable")
    assert int(answer.headers["retry-after"]) > 0
