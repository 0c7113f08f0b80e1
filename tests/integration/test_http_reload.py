"""Reloading by signal and by address, while streams run."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http_server import events_of, running_server, until
from tests.integration.test_http_embedded import make_engine

from ullage.access.config import AccessConfig
from ullage.access.keys import KeyStore
from ullage.base.config import load_settings, read_config_file, setting_values, settings_of
from ullage.service.config import ServiceConfig

CONFIG = ServiceConfig(port=0, drain_seconds=1.0)
STREAM = {"model": "tiny", "prompt": "hello", "max_tokens": 60, "ignore_eos": True, "stream": True}
ULLAGE = logging.getLogger("ullage")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    level = ULLAGE.level
    yield
    ULLAGE.setLevel(level)


def reader(path: Path) -> Callable[[], dict[str, Any]]:
    known = settings_of(ServiceConfig)
    return lambda: setting_values(load_settings(ServiceConfig, file=read_config_file(path, known)), AccessConfig())


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text('log_level = "info"\n')
    return path


async def ask_all(client: httpx.AsyncClient, num_requests: int) -> list[httpx.Response]:
    return await asyncio.gather(*[client.post("/v1/completions", json=STREAM) for _ in range(num_requests)])


async def test_a_signal_reloads_and_a_bad_file_is_refused_while_no_stream_is_hurt(config_file: Path) -> None:
    engine = make_engine(step_seconds=0.002)
    async with (
        running_server(engine, config=CONFIG) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        read = reader(config_file)
        server.server._service.reloads.follow(read, read())
        asking = asyncio.create_task(ask_all(client, 12))
        await until(lambda: engine.status().num_running > 1)
        for text, level in [
            ('log_level = "error"', logging.ERROR),
            ('log_level = "loud"', logging.ERROR),
            ("this is no TOML", logging.ERROR),
            ('log_level = "debug"\nport = 81', logging.ERROR),
            ('log_level = "debug"', logging.DEBUG),
        ]:
            config_file.write_text(text)
            signal.raise_signal(signal.SIGHUP)
            reloading = server.server._reloading
            await until(lambda before=reloading: server.server._reloading is not before)
            await server.server._reloading
            assert ULLAGE.level == level, text
        answers = await asking
    for answer in answers:
        *chunks, usage_end = events_of(answer.text)
        assert usage_end == "[DONE]"
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_the_address_needs_a_key_of_the_admin_group(config_file: Path, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.db")
    admin, user = (keys.create("t", group, (group,))[1] for group in ("admin", "inference"))
    access = AccessConfig(api_keys_file=str(tmp_path / "keys.db"))
    async with (
        running_server(make_engine(), config=CONFIG, access=access) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        read = reader(config_file)
        server.server._service.reloads.follow(read, read())

        async def reload(key: str = "none") -> httpx.Response:
            return await client.post("/admin/reload", headers={"authorization": f"Bearer {key}"})

        assert (await reload()).status_code == 401
        assert (await reload(user)).status_code == 403
        config_file.write_text('log_level = "error"')
        done = await reload(admin)
        assert (done.status_code, done.json()) == (200, {"changed": ["log_level"]})
        config_file.write_text('log_level = "loud"')
        refused = await reload(admin)
        assert refused.status_code == 400
        assert "log_level in the configuration file must be one of" in refused.json()["error"]["message"]
    assert ULLAGE.level == logging.ERROR


async def test_without_keys_there_is_no_reloading_from_outside() -> None:
    async with running_server(make_engine()) as server, httpx.AsyncClient(base_url=server.url) as client:
        answer = await client.post("/admin/reload")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    assert "SIGHUP" in answer.json()["error"]["message"]
